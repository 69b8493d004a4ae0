--# routes
-- Return the route by which a worker learns of its assignments: {partition, incarnation, status},
-- or nil if the worker has no partition.
local routes = {}

local function route_of(worker)
  local known = routes[worker]
  if known == nil then
    local row = call('HMGET', prefix .. 'worker:' .. worker, 'partition', 'incarnation', 'status')
    known = row[1] and row
    routes[worker] = known
  end
  return known
end

-- Assignments that were sent by a route and not started, by the time when they were last sent.
local UNSTARTED = prefix .. 'unstarted'

--# writing: routes
-- Functions that write jobs with their indexes, events and figures.

local MOST = 2000 -- arguments of one command, because Lua's stack is limited

local function in_parts(command, key, arguments)
  for from = 1, #arguments, MOST do
    call(command, key, unpack(arguments, from, math.min(#arguments, from + MOST - 1)))
  end
end

-- Changes of sorted sets are collected, and `flush` makes them together. For each member the last
-- change counts: `remove` drops an earlier addition, and `flush` removes members before it adds
-- others.
local adding, removing = {}, {}

local function add(key, score, member)
  table_of(adding, key)[member] = score
end

local function remove(key, member)
  table_of(removing, key)[member] = true
  if adding[key] then
    adding[key][member] = nil
  end
end

-- The same for leases, by worker: {id, lease, ...} that begin, {id, ...} that end. A job's lease
-- ends before its next lease begins.
local held, released = {}, {}

local function hold(worker, id, lease)
  local jobs = table_of(held, worker)
  jobs[#jobs + 1] = id
  jobs[#jobs + 1] = lease
end

local function release(worker, id)
  local jobs = table_of(released, worker)
  jobs[#jobs + 1] = id
end

-- The claimable jobs: each queue and type has a sorted set of jobs in claim order. Each queue has
-- an index: a sorted set of its types with jobs. A type's score is not above that of its first job.
local RANK = 562949953421312 -- 2^49

-- Return the score of a job in claim order: by rank (9 - priority), then by number.
local function ready_score(priority, seq)
  return (9 - priority) * RANK + seq
end

local function ready_set(queue, type)
  return prefix .. 'ready:' .. queue .. ':' .. type
end

local function ready_types(queue)
  return prefix .. 'ready_types:' .. queue
end

-- A job with a concurrency key counts as another type: with a NUL before it, which no type has. It
-- is also in a set of its key and type. An index has these sets as "key NUL type".
local function keyed_type(type)
  return '\0' .. type
end

local function key_set(queue, member)
  return prefix .. 'ready_of_key:' .. queue .. ':' .. member
end

local function ready_keys(queue)
  return prefix .. 'ready_keys:' .. queue
end

-- When the bucket of the rate limit of each key is full again.
local function key_buckets(queue)
  return prefix .. 'key_buckets:' .. queue
end

local entered, left_by = {}, {} -- by queue: the lowest score of each type; types that may be empty
local keys_entered, keys_left = {}, {} -- the same of the sets of keys

local function note_entered(tables, queue, member, score)
  local scores = table_of(tables, queue)
  scores[member] = math.min(score, scores[member] or score)
end

-- `key` is the job's concurrency key, or nil or false.
local function enter_ready(queue, type, score, id, key)
  if key then
    local member = key .. '\0' .. type
    add(key_set(queue, member), score, id)
    note_entered(keys_entered, queue, member, score)
    type = keyed_type(type)
  end
  add(ready_set(queue, type), score, id)
  note_entered(entered, queue, type, score)
end

-- Record that jobs of a type were removed, perhaps including the last one.
local function note_left(queue, type)
  table_of(left_by, queue)[type] = true
end

-- Remove a job from the set of its key.
local function leave_key(queue, key, type, id)
  local member = key .. '\0' .. type
  remove(key_set(queue, member), id)
  table_of(keys_left, queue)[member] = true
end

local function leave_ready(queue, type, id, key)
  if key then
    leave_key(queue, key, type, id)
    type = keyed_type(type)
  end
  remove(ready_set(queue, type), id)
  note_left(queue, type)
end

-- The held jobs that have a key: their keys by id, and the number of jobs by key.
local function hold_key(queue, id, key)
  call('HSET', prefix .. 'key_of_held:' .. queue, id, key)
  call('HINCRBY', prefix .. 'key_held:' .. queue, key, 1)
end

local holds_keys = {} -- by queue: true if some of its held jobs have keys

local function release_key(queue, id)
  local keys = prefix .. 'key_of_held:' .. queue
  if holds_keys[queue] == nil then
    holds_keys[queue] = call('EXISTS', keys) == 1
  end
  local key = holds_keys[queue] and call('HGET', keys, id)
  if key then
    call('HDEL', keys, id)
    if call('HINCRBY', prefix .. 'key_held:' .. queue, key, -1) <= 0 then
      call('HDEL', prefix .. 'key_held:' .. queue, key)
    end
  end
end

local function flush()
  for worker, jobs in pairs(released) do
    in_parts('HDEL', prefix .. 'current_jobs:' .. worker, jobs)
  end
  for worker, jobs in pairs(held) do
    in_parts('HSET', prefix .. 'current_jobs:' .. worker, jobs)
  end
  for key, members in pairs(removing) do
    local arguments = {}
    for member in pairs(members) do
      arguments[#arguments + 1] = member
    end
    in_parts('ZREM', key, arguments)
  end
  for key, members in pairs(adding) do
    local arguments = {}
    for member, score in pairs(members) do
      arguments[#arguments + 1] = score
      arguments[#arguments + 1] = member
    end
    in_parts('ZADD', key, arguments)
  end
  for queue, types in pairs(left_by) do
    for type in pairs(types) do
      if call('EXISTS', ready_set(queue, type)) == 0 then
        call('ZREM', ready_types(queue), type)
      end
    end
  end
  for queue, types in pairs(entered) do
    for type, score in pairs(types) do
      call('ZADD', ready_types(queue), 'LT', score, type)
    end
  end
  for queue, members in pairs(keys_left) do
    for member in pairs(members) do
      if call('EXISTS', key_set(queue, member)) == 0 then
        call('ZREM', ready_keys(queue), member)
      end
    end
  end
  for queue, members in pairs(keys_entered) do
    for member, score in pairs(members) do
      call('ZADD', ready_keys(queue), 'LT', score, member)
    end
  end
  entered, left_by, held, released, adding, removing = {}, {}, {}, {}, {}, {}
  keys_entered, keys_left = {}, {}
end

local DUE = prefix .. 'due'

local function enter(id, seq, queue, before, after)
  if before then
    remove(index(before, queue), id)
  end
  if before == 'ASSIGNED' then
    remove(UNSTARTED, id)
  end
  add(index(after, queue), seq, id)
end

-- Set the time when a job is due for the sweeper; nil: never.
local function set_due(id, at)
  if at then
    add(DUE, at, id)
  else
    remove(DUE, id)
  end
end

-- Numbers of events are reserved in blocks, so that a batch reserves them once. No other call runs
-- meanwhile. At the end of the script the rest of the block is given back, so numbers have no gaps.
local drawn, left, block = 0, 0, 1

local function expect_events(count)
  block = math.max(1, math.min(count, 1000))
end

local function give_back()
  if left > 0 then
    call('HINCRBY', prefix .. 'counters', 'events', -left)
    left = 0
  end
end

-- Write an event and return its number. The Redis stream of events is in the order of commits.
-- `more` has, as JSON, the fields of the event that later transitions may change (`_more_of` in
-- documents.py).
local function record(id, version, before, after, reason, at, attempt, worker, detail, queue, more)
  if left == 0 then
    drawn = call('HINCRBY', prefix .. 'counters', 'events', block) - block
    left = block
  end
  drawn, left = drawn + 1, left - 1
  local place = string.format('%.0f', drawn)
  call(
    'XADD', prefix .. 'events', place .. '-0',
    'job_id', id, 'version', version, 'from', before or '', 'to', after, 'reason', reason,
    'at', at, 'attempt', attempt, 'worker', worker or '', 'detail', detail or '', 'queue', queue,
    'more', more or ''
  )
  return place
end

-- Write events {version, before, after, reason, at, attempt, worker, detail, more}, and add their
-- numbers to the fields of their job's document.
local function record_all(id, queue, events, fields)
  for _, event in ipairs(events) do
    fields[#fields + 1] = 'event:' .. event[1]
    fields[#fields + 1] = record(
      id, event[1], event[2], event[3], event[4], event[5], event[6], event[7], event[8], queue,
      event[9]
    )
  end
end

-- The figures of attempts that ended, by queue.
local figures = {}

local function count_attempt(queue, succeeded, ran_for)
  local sums = table_of(figures, queue)
  local name = succeeded and 'succeeded' or 'failed'
  sums[name] = (sums[name] or 0) + 1
  sums.run_seconds = (sums.run_seconds or 0) + ran_for
end

local function write_figures()
  for queue, sums in pairs(figures) do
    for name, sum in pairs(sums) do
      if sum ~= 0 then
        local command = name == 'run_seconds' and 'HINCRBYFLOAT' or 'HINCRBY'
        call(command, prefix .. 'queue:' .. queue, name, exact(sum))
      end
    end
  end
  figures = {}
end
