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
call('DEL', prefix .. 'key_buckets:' .. name)
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
  local counts = {} -- jobs with a concurrency key count with the others of their type
  for _, type in ipairs(call('ZRANGE', ready_types(name), 0, -1)) do
    local shown = string.byte(type) == 0 and string.sub(type, 2) or type
    counts[shown] = (counts[shown] or 0) + call('ZCARD', ready_set(name, type))
  end
  for shown, count in pairs(counts) do
    found[#found + 1] = {name, shown, math.min(count, asked[1])}
  end
end
return found

--# limit_states
-- Return the state of the limits of queues: {queue, number of held jobs, when the bucket of its rate
-- limit is full, now}. asked: {name or nil}
local names = asked[1] and {asked[1]} or call('SMEMBERS', prefix .. 'queues')
local found = {}
for _, name in ipairs(names) do
  local row = call(
    'HMGET', prefix .. 'queue:' .. name, 'name', 'deleted', 'max_running', 'rate',
    'key_max_running', 'key_rate', 'key_weights'
  )
  if row[1] and not row[2] and (row[3] or row[4] or row[5] or row[6] or row[7]) then
    found[#found + 1] = {
      name, call('ZCARD', index('ASSIGNED', name)) + call('ZCARD', index('RUNNING', name)),
      call('HGET', prefix .. 'buckets:' .. name, '') or '0', now_text,
    }
  end
end
return found

--# key_states: writing
-- Return the state of the limits of keys that have claimable jobs: {key, number of held jobs, of
-- claimable jobs, when the bucket of its rate limit is full, now}.
-- asked: {queue, jobs are counted up to, keys at most, the only key or nil}
local name, count_to, most, only = asked[1], asked[2], asked[3], asked[4]
if call('SISMEMBER', prefix .. 'queues', name) == 0 then
  return {}
end
local members = {}
if only then
  for _, type in ipairs(call('ZRANGE', ready_types(name), 0, -1)) do
    if string.byte(type) == 0 then -- see keyed_type
      members[#members + 1] = only .. type
    end
  end
else
  members = call('ZRANGE', ready_keys(name), 0, 2 * most - 1)
end
local waiting, keys = {}, {}
for _, member in ipairs(members) do
  local key = string.match(member, '^([^%z]*)%z')
  local count = call('ZCARD', key_set(name, member))
  if count > 0 then
    if not waiting[key] then
      keys[#keys + 1] = key
    end
    waiting[key] = (waiting[key] or 0) + count
  end
end
local found = {}
for n = 1, math.min(#keys, most) do
  local key = keys[n]
  found[n] = {
    key, call('HGET', prefix .. 'key_held:' .. name, key) or '0', math.min(waiting[key], count_to),
    call('ZSCORE', key_buckets(name), key) or '0', now_text,
  }
end
return found
