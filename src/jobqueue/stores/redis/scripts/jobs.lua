--# submit: claiming
-- (new) -> PENDING. Each job is accepted or refused independently; then claims are filled.
--
-- asked: {jobs, life of a key, claims, assignment timeout, seed}
-- A job: {id, queue, type, payload, labels, priority, max_retries, ttl, timeout, run_at, delay,
-- key, fingerprint, the same key without an owner, more, unique, concurrency key}. `unique` is {key, scope, period,
-- what happens on a conflict} or nil. Returns a word for each job, with the id of the original job
-- or the capacity of the queue; an accepted job has the job that it superseded.
local jobs, key_life = asked[1], asked[2]
local expected = #jobs
for _, claim in ipairs(asked[3]) do
  expected = expected + #claim[3]
end
expect_events(expected)

local queues = {}

local function queue_named(name)
  local known = queues[name]
  if known == nil then
    local row = call(
      'HMGET', prefix .. 'queue:' .. name,
      'max_retries', 'ttl', 'timeout', 'capacity', 'deleted'
    )
    known = false
    if row[1] and not row[5] then
      known = {
        max_retries = row[1], ttl = tonumber(row[2]), timeout = row[3],
        capacity = tonumber(row[4]), pending = call('ZCARD', index('PENDING', name)),
      }
    end
    queues[name] = known
  end
  return known
end

-- Times of creation never decrease in order of job numbers. Lists by time rely on this.
local created = tonumber(call('HGET', prefix .. 'counters', 'latest') or 0)
created = math.max(created, now)
local created_at, updated_at = iso(created), iso(now)
local next_seq, last_seq = 1, 0

local function insert(job, queue)
  if next_seq > last_seq then
    last_seq = call('HINCRBY', prefix .. 'counters', 'seq', #jobs)
    next_seq = last_seq - #jobs + 1
    call('HSET', prefix .. 'counters', 'latest', exact(created))
  end
  local id, name, priority = job[1], job[2], job[6]
  local number, seq = next_seq, exact(next_seq)
  next_seq = next_seq + 1
  job[7] = job[7] or queue.max_retries
  job[8] = job[8] or queue.ttl
  job[9] = job[9] or queue.timeout
  job[10] = job[11] and now + job[11] or job[10]
  local run_at, expires_at = job[10], job[8] and now + job[8]
  local event = record(
    id, '1', nil, 'PENDING', 'SUBMITTED', now_text, '0', nil, nil, name,
    run_at and '{"run_at":' .. exact(run_at) .. '}'
  )
  local fields = { -- the same fields as in spec_fields and live_fields of documents.py
    'job_id', id, 'status', 'PENDING', 'queue', name, 'type', job[3], 'payload', job[4],
    'priority', priority, 'max_retries', job[7], 'retry_count', '0', 'attempt', '0', 'version', '1',
    'reason', 'SUBMITTED', 'seq', seq, 'created_at', created_at, 'updated_at', updated_at,
    'event:1', event,
  }
  local function set(field, value)
    if value then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  set('labels', job[5])
  set('more', job[15])
  set('ttl', job[8])
  set('timeout', job[9])
  set('run_at', run_at)
  set('expires_at', expires_at)
  set('idempotency_key', job[12])
  if job[16] then
    set('unique', job[16][1])
    call('HSET', prefix .. 'unique:' .. name, job[16][1], id .. ' ' .. exact(created))
  end
  set('concurrency_key', job[17])
  call('HSET', document(id), unpack(fields))
  add(prefix .. 'jobs', seq, id)
  enter(id, seq, name, nil, 'PENDING')
  local due = expires_at
  if run_at and run_at > now then
    due = expires_at and math.min(run_at, expires_at) or run_at
  else
    enter_ready(name, job[3], ready_score(priority, number), id, job[17])
    tell(WORK)
  end
  if due then
    add(DUE, due, id)
  end
end

local function taken(keys, key, fingerprint)
  local kept = call('HGET', keys, key)
  if kept then
    local original, first, expires = string.match(kept, '^(%S+) (%S+) (%S+)$')
    if tonumber(expires) > now then
      return {first == fingerprint and 'duplicate' or 'conflict', original}
    end
  end
end

-- The rules of core/unique.py. Return the holder of a job's unique key if the holder is in the way.
local function in_the_way(name, unique)
  local kept = call('HGET', prefix .. 'unique:' .. name, unique[1])
  if not kept then
    return
  end
  local id, at = string.match(kept, '^(%S+) (%S+)$')
  local row = call(
    'HMGET', document(id), 'status', 'seq', 'version', 'attempt', 'retry_count', 'started_at',
    'assigned_worker', 'type', 'cancel_requested'
  )
  local state = row[1]
  local waits = state == 'PENDING' or state == 'FAILED'
  local blocks = waits
  if unique[3] then
    blocks = state and now < tonumber(at) + unique[3]
  elseif unique[2] ~= 'waiting' then
    blocks = waits or state == 'ASSIGNED' or state == 'RUNNING'
  end
  return blocks and {id = id, row = row} or nil
end

-- PENDING, FAILED -> DEAD_LETTERED: the job `by` takes the place of a waiting job. Returns what the
-- caller tells of that: id, state before, worker of the last attempt.
local function supersede(name, old, by)
  local id, row, key = old.id, old.row, document(old.id)
  local version, detail = tostring(row[3] + 1), 'superseded by job ' .. by
  local more = '{"retry_count":' .. row[5]
  if row[6] then
    more = more .. ',"started_at":' .. row[6]
  end
  if row[9] then
    more = more .. ',"cancel_requested":true'
  end
  local event = record(
    id, version, row[1], 'DEAD_LETTERED', 'SUPERSEDED', now_text, row[4], nil, detail, name,
    more .. '}'
  )
  call(
    'HSET', key, 'status', 'DEAD_LETTERED', 'reason', 'SUPERSEDED', 'version', version,
    'completed_at', now_text, 'updated_at', updated_at, 'error', detail, 'event:' .. version, event
  )
  call('HDEL', key, 'expires_at', 'next_retry_at')
  enter(id, row[2], name, row[1], 'DEAD_LETTERED')
  if row[1] == 'PENDING' then
    remove(ready_set(name, row[8]), id)
    note_left(name, row[8])
  end
  set_due(id, nil)
  tell(ENDED)
  return {id, row[1], row[7]}
end

local function accept(job)
  local id, name, key = job[1], job[2], job[12]
  local queue = queue_named(name)
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
  local old = job[16] and in_the_way(name, job[16])
  if old and job[16][4] ~= 'replace' then
    return {'not unique', old.id}
  end
  local gives_place = old and old.row[1] == 'PENDING'
  if queue.capacity > 0 and queue.pending >= queue.capacity and not gives_place then
    return {'full', queue.capacity}
  end
  queue.pending = queue.pending + (gives_place and 0 or 1)
  local superseded = old and supersede(name, old, id)
  insert(job, queue)
  if key then
    local expires = now + key_life
    call('HSET', keys, key, id .. ' ' .. job[13] .. ' ' .. exact(expires))
    call('ZADD', prefix .. 'key_expiry', expires, name .. '\0' .. key)
  end
  return {'accepted', superseded}
end

local results, wrote = {}, false
for n, job in ipairs(jobs) do
  results[n] = accept(job)
  wrote = wrote or results[n][1] == 'accepted'
end
flush()

local rows, kept, _, held_back = fill(asked[3], asked[4], asked[5])
return finish(results, rows, kept, wrote, held_back)

--# apply: claiming
-- Make transitions of jobs, in order, each fenced; then fill claims.
--
-- Plain starts and plain successes are decided here. core.decide decides all other transitions,
-- from a row that was read before. Its decision is written only if the job has not changed since.
-- Otherwise, and for a transition that is not plain, the script returns a row for core.decide.
--
-- asked: {items, claims, assignment timeout, seed, watchdog grace, term or nil}
-- An item:
--   {'read', seq}
--   {'start', seq, lease, worker that must hold it (nil: any), ran_for}
--   {'succeed', seq, lease, worker, ran_for, result, detail}
--   {'write', seq, ...}, as write() reads it
-- Returns {items, rows of the claims}, or nothing if the term is over. For each item:
--   {'none'}, {'row', ...}, {'made', before, id, queue, worker, ran_for}, {'written'}
if asked[6] and not stands(asked[6]) then
  return false
end

local items, grace = asked[1], asked[5]
local ended_in = {} -- queues in which a lease ended
expect_events(2 * #items)
local wrote = false
local updated_at = iso(now)

-- Return the row that _DecidedJob in applying.py reads.
local function read(seq)
  local id = id_of(seq)
  if not id then
    return {'none'}
  end
  local row = call(
    'HMGET', document(id), 'status', 'version', 'attempt', 'retry_count', 'max_retries', 'lease',
    'assigned_worker', 'cancel_requested', 'worker_deaths', 'timeout', 'run_at', 'expires_at',
    'started_at', 'queue', 'priority', 'error', 'reason'
  )
  local queue = call(
    'HMGET', prefix .. 'queue:' .. row[14], 'deleted', 'retry_profile', 'retry_base', 'retry_max',
    'retry_jitter'
  )
  return {'row', now_text, id, queue, unpack(row)}
end

local function start(id, seq, row, ran_for)
  local version = tostring(row[3] + 1)
  local event = record(
    id, version, 'ASSIGNED', 'RUNNING', 'STARTED', now_text, row[4], row[5], nil, row[7]
  )
  call(
    'HSET', document(id), 'status', 'RUNNING', 'reason', 'STARTED', 'version', version,
    'started_at', now - (ran_for or 0), 'updated_at', updated_at, 'event:' .. version, event
  )
  if row[10] then
    call('HDEL', document(id), 'expires_at') -- the TTL ends at the first start
  end
  enter(id, seq, row[7], 'ASSIGNED', 'RUNNING')
  set_due(id, row[9] and now + row[9] + grace)
  return {'made', 'ASSIGNED', id, row[7], row[5], false}
end

local function succeed(id, seq, row, ran_for, result, detail)
  local version, key, queue, worker = tostring(row[3] + 1), document(id), row[7], row[5]
  local started_at
  local fields = {}
  if row[1] == 'ASSIGNED' then
    ran_for = ran_for or 0 -- started and ended in one batch: the time is close to 0
    started_at = now - ran_for
    fields = {'event:' .. version, record(
      id, version, 'ASSIGNED', 'RUNNING', 'STARTED', now_text, row[4], worker, nil, queue
    )}
    version = tostring(version + 1)
  else
    local began = tonumber(row[8]) or now
    ran_for = ran_for or math.max(0, now - began)
    -- The worker began before the store recorded the start. The worker knows how long the job ran.
    started_at = math.min(began, now - ran_for)
  end
  local event = record(
    id, version, 'RUNNING', 'DONE', 'SUCCEEDED', now_text, row[4], worker, detail, queue
  )
  if result then
    fields[#fields + 1] = 'result'
    fields[#fields + 1] = result
  end
  call(
    'HSET', key, 'status', 'DONE', 'reason', 'SUCCEEDED', 'version', version,
    'started_at', started_at, 'completed_at', now_text, 'updated_at', updated_at,
    'lease', '', 'event:' .. version, event, unpack(fields)
  )
  if row[10] or row[11] then
    call('HDEL', key, 'error', 'expires_at') -- the TTL ends at the first start
  end
  release(worker, id)
  release_key(queue, id)
  ended_in[queue] = true
  enter(id, seq, queue, row[1], 'DONE')
  add(prefix .. 'completed', now_text, id)
  set_due(id, nil)
  count_attempt(queue, true, ran_for)
  tell(ENDED)
  return {'made', row[1], id, queue, worker, exact(ran_for)}
end

local put_off = {} -- jobs with a transition that core.decide must decide; their later ones wait

local function plain(item)
  local move, seq, lease, worker, ran_for = item[1], exact(item[2]), item[3], item[4], item[5]
  local id = not put_off[seq] and id_of(seq)
  if id then
    local row = call(
      'HMGET', document(id), 'status', 'lease', 'version', 'attempt', 'assigned_worker',
      'cancel_requested', 'queue', 'started_at', 'timeout', 'expires_at', 'error'
    )
    if row[2] == lease and (not worker or row[5] == worker) then
      if move == 'start' and row[1] == 'ASSIGNED' then
        wrote = true
        return start(id, seq, row, ran_for)
      elseif move == 'succeed' and not row[6] then
        wrote = true
        return succeed(id, seq, row, ran_for, item[6], item[7])
      end
    end
  end
  put_off[seq] = true
  return read(seq)
end

-- {'write', seq, id, queue, version and cancel flag at the decision, true if the queue must exist,
-- before, after, at, fields to set, fields to remove, events {version, before, after, reason, at,
-- attempt, worker, detail, more}, due, priority, the worker whose lease ended, attempts that ended
-- {succeeded, ran_for}, news}
local function write(item)
  local seq, id, queue = item[2], item[3], item[4]
  local key = document(id)
  local row = call('HMGET', key, 'version', 'cancel_requested', 'type')
  local changed = row[1] ~= item[5] or (row[2] or '') ~= item[6]
  if changed or (item[7] and call('HEXISTS', prefix .. 'queue:' .. queue, 'deleted') == 1) then
    return read(seq)
  end
  wrote = true
  local from, to, at, fields = item[8], item[9], item[10], item[11]
  record_all(id, queue, item[13], fields)
  call('HSET', key, 'updated_at', iso(at), unpack(fields))
  if #item[12] > 0 then
    call('HDEL', key, unpack(item[12]))
  end
  enter(id, seq, queue, from, to)
  local waits = from == 'PENDING' or to == 'PENDING'
  local concurrency_key = waits and call('HGET', key, 'concurrency_key')
  if from == 'PENDING' then
    leave_ready(queue, row[3], id, concurrency_key)
  end
  if to == 'PENDING' then
    enter_ready(queue, row[3], ready_score(item[15], seq), id, concurrency_key)
  elseif to == 'DONE' then
    add(prefix .. 'completed', at, id)
  end
  set_due(id, item[14])
  if item[16] then
    release(item[16], id)
    release_key(queue, id)
    ended_in[queue] = true
  end
  for _, attempt in ipairs(item[17]) do
    count_attempt(queue, attempt[1], attempt[2])
  end
  for _, change in ipairs(item[18]) do
    tell(change)
  end
  return {'written'}
end

local said = {}
for n, item in ipairs(items) do
  if item[1] == 'write' then
    said[n] = write(item)
  elseif item[1] == 'read' then
    said[n] = read(item[2])
  else
    said[n] = plain(item)
  end
end
flush()
write_figures()

local freed = false
for queue in pairs(ended_in) do
  local limits = call('HMGET', prefix .. 'queue:' .. queue, 'max_running', 'key_max_running')
  if limits[1] or limits[2] then
    freed = freed or {}
    freed[#freed + 1] = queue
    tell(WORK)
  end
end

expect_events(#items)
local rows, kept, _, held_back = fill(asked[2], asked[3], asked[4])
return finish(said, rows, kept, wrote, held_back, freed)

--# request_cancel: write, held, outbox
-- Flag a RUNNING job to be cancelled. Returns its lease, or nothing. asked: {seq}
local id = id_of(asked[1])
local row = id and held_row(id)
if not row or row[4] ~= 'RUNNING' then
  return false
end
if row[5] then
  return row
end
call('HSET', document(id), 'cancel_requested', '1')
local job = call('HMGET', document(id), 'queue', 'version')
put('cancel', 'job_id', id, 'queue', job[1], 'version', job[2])
tell(CONTROL)
return answer(held_row(id))
