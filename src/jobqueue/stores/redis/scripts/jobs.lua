-- Writing jobs: indexes, events and figures. Needs routes.lua.

-- Changes of sorted sets are kept back and made together. In any order of calls the last one
-- counts: what is removed loses what was added before, and flush removes before it adds.
local adding, removing = {}, {}

local function add(key, score, member)
  local members = adding[key]
  if not members then
    members = {}
    adding[key] = members
  end
  members[member] = score
end

local function remove(key, member)
  local members = removing[key]
  if not members then
    members = {}
    removing[key] = members
  end
  members[member] = true
  if adding[key] then
    adding[key][member] = nil
  end
end

-- What workers hold: job and lease, by worker. A lease ends before another begins.
local held, released = {}, {}

local function hold(worker, id, lease)
  local jobs = held[worker]
  if not jobs then
    jobs = {}
    held[worker] = jobs
  end
  jobs[#jobs + 1] = id
  jobs[#jobs + 1] = lease
end

local function release(worker, id)
  local jobs = released[worker]
  if not jobs then
    jobs = {}
    released[worker] = jobs
  end
  jobs[#jobs + 1] = id
end

local MOST = 2000 -- arguments of one command: Lua's stack is finite

local function in_parts(command, key, arguments)
  for from = 1, #arguments, MOST do
    redis.call(command, key, unpack(arguments, from, math.min(#arguments, from + MOST - 1)))
  end
end

-- Numbers of events are drawn in blocks, so that a batch counts once. Nobody else draws meanwhile:
-- what is left of a block at the end of a script goes back, and there are no gaps.
local drawn, left, block = 0, 0, 1

local function expect_events(count)
  block = math.max(1, math.min(count, 1000))
end

local function give_back()
  if left > 0 then
    redis.call('HINCRBY', prefix .. 'counters', 'events', -left)
    left = 0
  end
end

-- What can be claimed: a sorted set for each queue and type, in claim order; and for each queue those
-- of its types that have something. A type's score is no later than that of its first job.
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

local entered, left_by -- by queue: the lowest score of each type; types that may be empty

local function enter_ready(queue, type, score, id)
  add(ready_set(queue, type), score, id)
  entered = entered or {}
  local types = entered[queue]
  if not types then
    types = {}
    entered[queue] = types
  end
  types[type] = math.min(score, types[type] or score)
end

-- Jobs of a type left, maybe the last one.
local function note_left(queue, type)
  left_by = left_by or {}
  left_by[queue] = left_by[queue] or {}
  left_by[queue][type] = true
end

local function flush()
  for worker, jobs in pairs(released) do
    in_parts('HDEL', prefix .. 'current_jobs:' .. worker, jobs)
  end
  for worker, jobs in pairs(held) do
    in_parts('HSET', prefix .. 'current_jobs:' .. worker, jobs)
  end
  for key, members in pairs(removing) do
    local one = next(members)
    if not next(members, one) then
      redis.call('ZREM', key, one)
    else
      local arguments = {}
      for member in pairs(members) do
        arguments[#arguments + 1] = member
      end
      in_parts('ZREM', key, arguments)
    end
  end
  for key, members in pairs(adding) do
    local one, at = next(members)
    if one and not next(members, one) then
      redis.call('ZADD', key, at, one)
    else
      local arguments = {}
      for member, score in pairs(members) do
        arguments[#arguments + 1] = score
        arguments[#arguments + 1] = member
      end
      in_parts('ZADD', key, arguments)
    end
  end
  for queue, types in pairs(left_by or {}) do
    for type in pairs(types) do
      if redis.call('EXISTS', ready_set(queue, type)) == 0 then
        redis.call('ZREM', ready_types(queue), type)
      end
    end
  end
  for queue, types in pairs(entered or {}) do
    for type, score in pairs(types) do
      redis.call('ZADD', ready_types(queue), 'LT', score, type)
    end
  end
  entered, left_by = nil, nil
  held, released, adding, removing = {}, {}, {}, {}
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

-- When the sweeper must look at a job; nil: never.
local function set_due(id, at)
  if at then
    add(DUE, at, id)
  else
    remove(DUE, id)
  end
end

-- The log of events is a stream, and the outbox: ids grow in the order of commit. `more` is what the
-- event wrote and the job's document may lose again, as JSON: see outbox.py.
local function record(id, version, before, after, reason, at, attempt, worker, detail, queue, more)
  if left == 0 then
    drawn = redis.call('HINCRBY', prefix .. 'counters', 'events', block) - block
    left = block
  end
  drawn, left = drawn + 1, left - 1
  local place = string.format('%.0f', drawn)
  redis.call(
    'XADD', prefix .. 'events', place .. '-0',
    'job_id', id, 'version', version, 'from', before or '', 'to', after, 'reason', reason,
    'at', at, 'attempt', attempt, 'worker', worker or '', 'detail', detail or '', 'queue', queue,
    'more', more or ''
  )
  return place
end

-- Attempts that ended, by queue.
local ended = {}

local function count_attempt(queue, succeeded, ran_for)
  local sums = ended[queue]
  if not sums then
    sums = {0, 0, 0}
    ended[queue] = sums
  end
  if succeeded then
    sums[1] = sums[1] + 1
  else
    sums[2] = sums[2] + 1
  end
  sums[3] = sums[3] + ran_for
end

local function write_figures()
  for queue, sums in pairs(ended) do
    local key = prefix .. 'queue:' .. queue
    if sums[1] > 0 then
      redis.call('HINCRBY', key, 'succeeded', sums[1])
    end
    if sums[2] > 0 then
      redis.call('HINCRBY', key, 'failed', sums[2])
    end
    if sums[3] ~= 0 then
      redis.call('HINCRBYFLOAT', key, 'run_seconds', exact(sums[3]))
    end
  end
  ended = {}
end
