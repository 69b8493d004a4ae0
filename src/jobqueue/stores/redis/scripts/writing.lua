--# routes
-- The route on which a worker hears of its assignments: {partition, incarnation, status}, or nil if
-- it was allotted no partition.
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

-- Assignments that went out by a route and were not started, by the time they were last sent.
local UNSTARTED = prefix .. 'unstarted'

--# writing: routes
-- Writing jobs: their indexes, events and figures.

local MOST = 2000 -- arguments of one command: Lua's stack is finite

local function in_parts(command, key, arguments)
  for from = 1, #arguments, MOST do
    call(command, key, unpack(arguments, from, math.min(#arguments, from + MOST - 1)))
  end
end

-- Changes of sorted sets are collected and made together, by flush. For each member the last one
-- counts: `remove` forgets what was added before, and flush removes before it adds.
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

-- The same of leases, by worker: {id, lease, ...} that begin, {id, ...} that end. A lease ends before
-- another one begins.
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

-- The claimable jobs: a sorted set for each queue and type, in claim order; and for each queue those
-- of its types that have jobs. The score of a type is no later than that of its first job.
local RANK = 562949953421312 -- 2^49

-- In claim order: the rank (9 - priority) first, then the number.
local function ready_score(priority, seq)
  return (9 - priority) * RANK + seq
end

local function ready_set(queue, type)
  return prefix .. 'ready:' .. queue .. ':' .. type
end

local function ready_types(queue)
  return prefix .. 'ready_types:' .. queue
end

local entered, left_by = {}, {} -- by queue: the lowest score of each type; types that may be empty

local function enter_ready(queue, type, score, id)
  add(ready_set(queue, type), score, id)
  local types = table_of(entered, queue)
  types[type] = math.min(score, types[type] or score)
end

-- Note that jobs of a type left, and maybe its last one.
local function note_left(queue, type)
  table_of(left_by, queue)[type] = true
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
  entered, left_by, held, released, adding, removing = {}, {}, {}, {}, {}, {}
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

-- Set when the sweeper must look at a job; nil: never.
local function set_due(id, at)
  if at then
    add(DUE, at, id)
  else
    remove(DUE, id)
  end
end

-- Numbers of events are drawn in blocks, so that a batch draws once. No other call draws meanwhile:
-- the rest of a block goes back at the end of the script, and the numbers have no gaps.
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

-- Write an event. The log of events is a stream, in the order of commit, and an outbox: `more` is
-- the part of the event that the job's document may lose again, as JSON (`_more_of` in documents.py).
-- Answers its number.
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
