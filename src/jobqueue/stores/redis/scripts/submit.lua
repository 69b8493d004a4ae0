-- (new) -> PENDING, each job on its own; then claims are filled.
--
-- asked: {jobs, life of a key, claims, assignment timeout, seed}
-- A job: id, queue, type, payload, labels, priority, max_retries, ttl, timeout, run_at, delay, key,
-- fingerprint, the equal key that is everybody's, more. Answers a word for each, with the id of the original or the capacity.
--# include common.lua
--# include lane.lua
--# include routes.lua
--# include jobs.lua
--# include claims.lua
local before = answered()
if before then
  return before.err and before or {before[1], found_again(before[2])}
end

local jobs, key_life = asked[1], asked[2]
local expected = #jobs
for _, claim in ipairs(asked[3]) do
  expected = expected + #claim[3]
end
expect_events(expected)

local homes = {}

local function home(name)
  local known = homes[name]
  if known == nil then
    local row = redis.call(
      'HMGET', prefix .. 'queue:' .. name,
      'max_retries', 'ttl', 'timeout', 'capacity', 'deleted'
    )
    known = false
    if row[1] and not row[5] then
      known = {
        max_retries = row[1], ttl = tonumber(row[2]), timeout = row[3],
        capacity = tonumber(row[4]), pending = redis.call('ZCARD', index('PENDING', name)),
      }
    end
    homes[name] = known
  end
  return known
end

-- Times of creation never go back: lists by time rely on it.
local created = tonumber(redis.call('HGET', prefix .. 'counters', 'latest') or 0)
created = math.max(created, now)
local created_at, updated_at = iso(created), iso(now)
local next_seq, last_seq = 1, 0

local function set(fields, field, value)
  if value then
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
end

local function insert(job, queue)
  if next_seq > last_seq then
    last_seq = redis.call('HINCRBY', prefix .. 'counters', 'seq', #jobs)
    next_seq = last_seq - #jobs + 1
    redis.call('HSET', prefix .. 'counters', 'latest', exact(created))
  end
  local id, name, priority = job[1], job[2], job[6]
  local number, seq = next_seq, exact(next_seq)
  next_seq = next_seq + 1
  local run_at = job[11] and now + job[11] or job[10]
  local event = record(
    id, '1', nil, 'PENDING', 'SUBMITTED', now_text, '0', nil, nil, name,
    run_at and '{"run_at":' .. exact(run_at) .. '}'
  )
  local fields = {
    'job_id', id, 'status', 'PENDING', 'queue', name, 'type', job[3], 'payload', job[4],
    'priority', priority, 'max_retries', job[7] or queue.max_retries, 'retry_count', '0',
    'attempt', '0', 'version', '1', 'reason', 'SUBMITTED', 'seq', seq,
    'created_at', created_at, 'updated_at', updated_at, 'event:1', event,
  }
  local ttl = job[8] or queue.ttl
  local expires_at = ttl and now + ttl
  set(fields, 'labels', job[5])
  set(fields, 'more', job[15])
  set(fields, 'ttl', ttl)
  set(fields, 'timeout', job[9] or queue.timeout)
  set(fields, 'expires_at', expires_at)
  set(fields, 'run_at', run_at)
  set(fields, 'idempotency_key', job[12])
  redis.call('HSET', document(id), unpack(fields))
  add(prefix .. 'jobs', seq, id)
  enter(id, seq, name, nil, 'PENDING')
  local due = expires_at
  if run_at and run_at > now then
    due = expires_at and math.min(run_at, expires_at) or run_at
  else
    enter_ready(name, job[3], ready_score(priority, number), id)
    tell(WORK)
  end
  if due then
    add(DUE, due, id)
  end
end

local function taken(keys, key, fingerprint)
  local kept = redis.call('HGET', keys, key)
  if kept then
    local original, first, expires = string.match(kept, '^(%S+) (%S+) (%S+)$')
    if tonumber(expires) > now then
      return {first == fingerprint and 'duplicate' or 'conflict', original}
    end
  end
end

local function accept(job)
  local id, name, key = job[1], job[2], job[12]
  local queue = home(name)
  if not queue then
    return {'no queue'}
  end
  local keys = prefix .. 'idempotency:' .. name
  if key then
    local found = taken(keys, key, job[13]) or (job[14] and taken(keys, job[14], job[13]))
    if found then
      return found
    end
  end
  if queue.capacity > 0 and queue.pending >= queue.capacity then
    return {'full', queue.capacity}
  end
  queue.pending = queue.pending + 1
  insert(job, queue)
  if key then
    local expires = now + key_life
    redis.call('HSET', keys, key, id .. ' ' .. job[13] .. ' ' .. exact(expires))
    redis.call('ZADD', prefix .. 'key_expiry', expires, name .. '\0' .. key)
  end
  return {'accepted'}
end

local results, wrote = {}, false
for n, job in ipairs(jobs) do
  results[n] = accept(job)
  wrote = wrote or results[n][1] == 'accepted'
end
flush()

local rows, kept = fill(asked[3], asked[4], asked[5])
give_back()
if not wrote and #kept == 0 then
  return {results, rows}
end
answer({results, kept})
return {results, rows}
