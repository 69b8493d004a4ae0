--# queue_write: write, outbox
-- A write that changes one queue. Its first argument is the name of the queue.
local name = asked[1]
local key = prefix .. 'queue:' .. name
local row = call('HMGET', key, 'name', 'deleted', 'paused')
local known = row[1] and not row[2]

local function changed(kind)
  put_queue(kind, name)
  tell(WORK)
  tell(CONTROL)
end

--# create_queue: queue_write
-- Create a queue. Returns {the time}, or nothing if the name is used. A queue that was deleted gets
-- its old figures back. asked: {name, fields to set, fields to remove}
if known then
  return false
end
call('HSET', key, 'created_at', now_text, unpack(asked[2]))
call('HDEL', key, 'deleted', unpack(asked[3]))
call('SADD', prefix .. 'queues', name)
call('SADD', prefix .. 'every_queue', name) -- it keeps deleted queues, because their jobs stay
changed('queue_created')
return answer({now_text})

--# update_queue: queue_write
-- Change settings of a queue. Returns {its settings}, or nothing if there is no such queue.
-- asked: {name, fields to set, fields to remove}
if not known then
  return false
end
local old = table.concat(settings_of(name), '\n')
if #asked[2] > 0 then
  call('HSET', key, unpack(asked[2]))
end
if #asked[3] > 0 then
  call('HDEL', key, unpack(asked[3]))
end
local new = settings_of(name)
if table.concat(new, '\n') ~= old then
  changed('queue_changed')
end
return answer({new})

--# pause_queue: queue_write
-- Stop or resume claims from a queue. Returns {1}, or nothing if there is no such queue. asked:
-- {name, paused}
if not known then
  return false
end
local paused = asked[2] and '1' or '0'
if row[3] == paused then
  return {1}
end
call('HSET', key, 'paused', paused)
changed('queue_changed')
return answer({1})

--# delete_queue: queue_write
-- Remove a queue if it has no unfinished jobs. Returns {number of unfinished jobs}, or nothing if
-- there is no such queue. Its jobs and figures stay. asked: {name}
if not known then
  return false
end
local unfinished = 0
for _, state in ipairs({'PENDING', 'ASSIGNED', 'RUNNING', 'FAILED'}) do
  unfinished = unfinished + call('ZCARD', index(state, name))
end
if unfinished > 0 then
  return {unfinished}
end
call('HSET', key, 'deleted', '1')
call('SREM', prefix .. 'queues', name)
changed('queue_deleted')
return answer({0})

--# unfinished
-- Return the numbers of a queue's unfinished jobs. asked: {queue, limit}
local found = {}
for _, state in ipairs({'PENDING', 'ASSIGNED', 'RUNNING', 'FAILED'}) do
  local rows = call('ZRANGE', index(state, asked[1]), 0, asked[2] - 1, 'WITHSCORES')
  for n = 2, #rows, 2 do
    if #found < asked[2] then
      found[#found + 1] = rows[n]
    end
  end
end
return found

--# stats
-- Return queues with their figures: {fields of the queue, depth by state}. asked: {states, name or
-- nil}
local names = asked[2] and {asked[2]} or call('SMEMBERS', prefix .. 'queues')
local found = {}
for _, name in ipairs(names) do
  local fields = call('HGETALL', prefix .. 'queue:' .. name)
  local deleted = #fields == 0
  for n = 1, #fields, 2 do
    deleted = deleted or fields[n] == 'deleted'
  end
  if not deleted then
    local depth = {}
    for n, state in ipairs(asked[1]) do
      depth[n] = call('ZCARD', index(state, name))
    end
    found[#found + 1] = {fields, depth}
  end
end
return found

--# waiting_types: writing
-- Return the types of claimable jobs: {queue, type, number of jobs, counted up to a limit}.
-- asked: {the limit, name or nil}
local names = asked[2] and {asked[2]} or call('SMEMBERS', prefix .. 'queues')
local found = {}
for _, name in ipairs(names) do
  for _, type in ipairs(call('ZRANGE', ready_types(name), 0, -1)) do
    local count = call('ZCARD', ready_set(name, type))
    found[#found + 1] = {name, type, math.min(count, asked[1])}
  end
end
return found

--# limit_states
-- Return the state of the limits of queues: {queue, number of held jobs, when the bucket of its rate
-- limit is full, now}. asked: {name or nil}
local names = asked[1] and {asked[1]} or call('SMEMBERS', prefix .. 'queues')
local found = {}
for _, name in ipairs(names) do
  local row = call('HMGET', prefix .. 'queue:' .. name, 'name', 'deleted', 'max_running', 'rate')
  if row[1] and not row[2] and (row[3] or row[4]) then
    found[#found + 1] = {
      name, call('ZCARD', index('ASSIGNED', name)) + call('ZCARD', index('RUNNING', name)),
      call('HGET', prefix .. 'buckets:' .. name, '') or '0', now_text,
    }
  end
end
return found
