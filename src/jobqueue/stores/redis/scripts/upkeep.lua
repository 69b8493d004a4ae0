--# due: writing
-- Promote delayed jobs, find jobs that are due, and remove expired idempotency keys.
--
-- asked: {limit, keys at most}. Returns {now, promoted, rows {state, seq, version, lease}, full,
-- the next time}. It is safe to repeat.
local limit = asked[1]
local due = call('ZRANGEBYSCORE', DUE, '-inf', now_text, 'LIMIT', 0, limit)
local rows, promoted = {}, 0
for _, id in ipairs(due) do
  local row = call(
    'HMGET', document(id), 'status', 'seq', 'version', 'lease', 'expires_at', 'priority', 'queue',
    'type', 'concurrency_key'
  )
  local expires_at = tonumber(row[5])
  if row[1] == 'PENDING' and not (expires_at and expires_at <= now) then
    promoted = promoted + 1
    enter_ready(row[7], row[8], ready_score(row[6], row[2]), id, row[9])
    set_due(id, expires_at)
  else
    rows[#rows + 1] = {row[1], row[2], row[3], row[4]}
  end
end
flush()
if promoted > 0 then
  call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' 1')
end

local expiry = prefix .. 'key_expiry'
local expired = call('ZRANGEBYSCORE', expiry, '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, asked[2])
for n = 1, #expired, 2 do
  local queue, key = string.match(expired[n], '^([^%z]*)%z(.*)$')
  local keys = prefix .. 'idempotency:' .. queue
  local kept = call('HGET', keys, key)
  -- Another job may have the key meanwhile.
  if kept and tonumber(string.match(kept, '(%S+)$')) <= now then
    call('HDEL', keys, key)
  end
  call('ZREM', expiry, expired[n])
end

local following = call('ZRANGEBYSCORE', DUE, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {now_text, promoted, rows, #due >= limit and 1 or 0, following[2] or false}

--# sort_ready: writing
-- Move claimable jobs from the index of an earlier version, which has one sorted set for each queue
-- and all its types. Returns {number of moved jobs, 1 if there are more}. It is safe to repeat.
-- asked: {jobs at most}
local left, more = asked[1], 0
for _, name in ipairs(call('SMEMBERS', prefix .. 'every_queue')) do
  local old = prefix .. 'ready:' .. name
  if call('EXISTS', old) == 1 then
    if left == 0 then
      more = 1
      break
    end
    local jobs = call('ZRANGE', old, 0, left - 1, 'WITHSCORES')
    for n = 1, #jobs, 2 do
      local id, score = jobs[n], jobs[n + 1]
      local row = call('HMGET', document(id), 'type', 'status')
      if row[2] == 'PENDING' then
        enter_ready(name, row[1], tonumber(score), id)
      end
    end
    call('ZREMRANGEBYRANK', old, 0, #jobs / 2 - 1)
    left = left - #jobs / 2
    if call('EXISTS', old) == 1 then
      more = 1
    end
  end
end
flush()
if left < asked[1] then
  call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' 1')
end
return {asked[1] - left, more}

--# removal: outbox
local mark = call('HGET', MARK, 'event')

-- Return true if there is no stream, or the stream has published all events of a job.
local function passed(id)
  if not mark then
    return true
  end
  local version = call('HGET', document(id), 'version')
  return tonumber(call('HGET', document(id), 'event:' .. version)) <= tonumber(mark)
end

-- Remove a job with its events. Its idempotency key stays until it expires, unless the caller frees
-- it.
local function forget(id, key_freed)
  local key = document(id)
  local row = call('HMGET', key, 'queue', 'status', 'version', 'unique')
  local events = {}
  for version = 1, tonumber(row[3]) do
    events[version] = 'event:' .. version
  end
  for from = 1, #events, 1000 do
    local places = call('HMGET', key, unpack(events, from, math.min(#events, from + 999)))
    for n, place in ipairs(places) do
      places[n] = place .. '-0'
    end
    call('XDEL', prefix .. 'events', unpack(places))
  end
  call('DEL', key)
  call('ZREM', index(row[2], row[1]), id)
  call('ZREM', prefix .. 'jobs', id)
  call('ZREM', prefix .. 'completed', id)
  local holder = row[4] and call('HGET', prefix .. 'unique:' .. row[1], row[4])
  if holder and string.match(holder, '^(%S+)') == id then
    call('HDEL', prefix .. 'unique:' .. row[1], row[4])
  end
  -- This write comes last: a full Redis refuses a script whose first write needs memory.
  put(
    'deleted', 'job_id', id, 'queue', row[1], 'version', row[3], 'key_freed', key_freed and 1 or 0
  )
end

--# delete_job: write, removal
-- Remove a terminal job with its history and key. Returns {its state, 1}, or nothing if there is no
-- such job. {its state, 0}: the job is not removed, because the event stream needs it. asked: {id,
-- the version that it must have (nil: any)}
local id = asked[1]
local row = call('HMGET', document(id), 'status', 'queue', 'idempotency_key', 'version')
local other = asked[2] and row[4] ~= asked[2]
if row[1] ~= 'DONE' and row[1] ~= 'DEAD_LETTERED' or other then
  return row[1] and {row[1], 1}
end
if not passed(id) then
  return {row[1], 0}
end
if row[3] then
  local keys = prefix .. 'idempotency:' .. row[2]
  local kept = call('HGET', keys, row[3])
  if kept and string.match(kept, '^(%S+)') == id then
    call('HDEL', keys, row[3])
    call('ZREM', prefix .. 'key_expiry', row[2] .. '\0' .. row[3])
  end
end
forget(id, true)
return answer({row[1], 1})

--# prune_done: led_write, removal
-- Remove DONE jobs that ended more than some seconds ago. Returns {jobs removed, jobs left out
-- because of their queue}, or nothing if the term is over.
-- asked: {term, least seconds ago, most seconds ago (nil: any), how many to read, names of queues,
-- true for all queues except these, how many to leave out at the beginning}
local named = {}
for _, name in ipairs(asked[5]) do
  named[name] = true
end
local all = asked[6] and #asked[5] == 0
local old = call(
  'ZRANGEBYSCORE', prefix .. 'completed', asked[3] and exact(now - asked[3]) or '-inf',
  '(' .. exact(now - asked[2]), 'LIMIT', asked[7], asked[4]
)
local removed, others = 0, 0
for _, id in ipairs(old) do
  if not all and (named[call('HGET', document(id), 'queue')] or false) == asked[6] then
    others = others + 1
  -- Jobs after those that the stream has not published yet are removed in a later call.
  elseif passed(id) then
    forget(id, false)
    removed = removed + 1
  end
end
return removed > 0 and answer({removed, others}) or {0, others}
