-- Moves of jobs, in order, each fenced; then claims are filled.
--
-- The plain start and the plain success are made here. Everything else was decided by core.decide
-- on a row that was read before, and is written if the job is still what was decided upon. What is
-- not plain after all is answered as a row to decide upon.
--
-- asked: {items, claims, assignment timeout, seed, watchdog grace, term or nil}
-- An item:
--   {'read', seq}
--   {'start', seq, lease, worker that must hold it (nil: whichever), ran_for}
--   {'succeed', seq, lease, worker, ran_for, result, detail}
--   {'write', ...}: see write() below
-- Answers {items, rows of the claims}; nil when the term is over. Of an item:
--   {'none'}, {'row', ...}, {'made', before, id, queue, worker, ran_for}, {'written'}, {'changed'}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include routes.lua
--# include jobs.lua
--# include claims.lua
local before = answered()
if before then
  return before.err and before or {before[1], found_again(before[2])}
end
if asked[6] and not stands(asked[6]) then
  return false
end

local items, grace = asked[1], asked[5]
expect_events(2 * #items)
local wrote = false
local updated_at = iso(now)

-- The columns of jobqueue.stores.redis.applying.
local function read(seq)
  local id = id_of(seq)
  if not id then
    return {'none'}
  end
  local row = redis.call(
    'HMGET', document(id), 'status', 'version', 'attempt', 'retry_count', 'max_retries', 'lease',
    'assigned_worker', 'cancel_requested', 'worker_deaths', 'timeout', 'run_at', 'expires_at',
    'started_at', 'queue', 'priority', 'error', 'reason'
  )
  local home = redis.call(
    'HMGET', prefix .. 'queue:' .. row[14], 'deleted', 'retry_profile', 'retry_base', 'retry_max',
    'retry_jitter'
  )
  return {'row', now_text, id, home, unpack(row)}
end

local function start(id, seq, row, ran_for)
  local version = tostring(row[3] + 1)
  local event = record(
    id, version, 'ASSIGNED', 'RUNNING', 'STARTED', now_text, row[4], row[5], nil, row[7]
  )
  redis.call(
    'HSET', document(id), 'status', 'RUNNING', 'reason', 'STARTED', 'version', version,
    'started_at', now - (ran_for or 0), 'updated_at', updated_at, 'event:' .. version, event
  )
  if row[10] then
    redis.call('HDEL', document(id), 'expires_at') -- the TTL ends at the first start
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
    ran_for = ran_for or 0 -- within one flush: close to nothing
    started_at = now - ran_for
    fields = {'event:' .. version, record(
      id, version, 'ASSIGNED', 'RUNNING', 'STARTED', now_text, row[4], worker, nil, queue
    )}
    version = tostring(version + 1)
  else
    local began = tonumber(row[8]) or now
    ran_for = ran_for or math.max(0, now - began)
    -- The worker began before the store heard of it, and knows for how long it ran.
    started_at = math.min(began, now - ran_for)
  end
  local event = record(
    id, version, 'RUNNING', 'DONE', 'SUCCEEDED', now_text, row[4], worker, detail, queue
  )
  if result then
    fields[#fields + 1] = 'result'
    fields[#fields + 1] = result
  end
  redis.call(
    'HSET', key, 'status', 'DONE', 'reason', 'SUCCEEDED', 'version', version,
    'started_at', started_at, 'completed_at', now_text, 'updated_at', updated_at,
    'lease', '', 'event:' .. version, event, unpack(fields)
  )
  if row[10] or row[11] then
    redis.call('HDEL', key, 'error', 'expires_at') -- the TTL ends at the first start
  end
  release(worker, id)
  enter(id, seq, queue, row[1], 'DONE')
  add(prefix .. 'completed', now_text, id)
  set_due(id, nil)
  count_attempt(queue, true, ran_for)
  tell(ENDED)
  return {'made', row[1], id, queue, worker, exact(ran_for)}
end

local put_off = {} -- jobs with a move that has to be decided: later ones of theirs wait for it

local function plain(item)
  local move, seq, lease, worker, ran_for = item[1], exact(item[2]), item[3], item[4], item[5]
  local id = not put_off[seq] and id_of(seq)
  if id then
    local row = redis.call(
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

-- {'write', id, seq, queue, version and cancel flag that were decided upon, whether the queue must
-- stand, before, after, at, attempt, fields to set, fields to remove, events {version, before,
-- after, reason, worker, detail, more}, due, priority, the worker whose lease ended, attempts that ended
-- {succeeded, ran_for}, whether the lease ended unasked}
local function write(item)
  local id, seq, queue = item[2], item[3], item[4]
  local key = document(id)
  local row = redis.call('HMGET', key, 'version', 'cancel_requested', 'type')
  if row[1] ~= item[5] or (row[2] or '') ~= item[6] then
    return {'changed'}
  end
  if item[7] and redis.call('HEXISTS', prefix .. 'queue:' .. queue, 'deleted') == 1 then
    return {'changed'}
  end
  wrote = true
  local from, to, at, fields = item[8], item[9], item[10], item[12]
  for _, event in ipairs(item[14]) do
    fields[#fields + 1] = 'event:' .. event[1]
    fields[#fields + 1] = record(
      id, event[1], event[2], event[3], event[4], at, item[11], event[5], event[6], queue, event[7]
    )
  end
  redis.call('HSET', key, 'updated_at', iso(at), unpack(fields))
  if #item[13] > 0 then
    redis.call('HDEL', key, unpack(item[13]))
  end
  enter(id, seq, queue, from, to)
  if from == 'PENDING' then
    remove(ready_set(queue, row[3]), id)
    note_left(queue, row[3])
  end
  if to == 'PENDING' then
    enter_ready(queue, row[3], ready_score(item[16], seq), id)
    tell(WORK)
  elseif to == 'DONE' then
    add(prefix .. 'completed', at, id)
    tell(ENDED)
  elseif to == 'DEAD_LETTERED' then
    tell(ENDED)
  end
  set_due(id, item[15])
  if item[17] then
    release(item[17], id)
  end
  for _, attempt in ipairs(item[18]) do
    count_attempt(queue, attempt[1], attempt[2])
  end
  if item[19] then
    tell(CONTROL)
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

expect_events(#items)
local rows, kept = fill(asked[2], asked[3], asked[4])
give_back()
if wrote or #kept > 0 then
  answer({said, kept})
end
return {said, rows}
