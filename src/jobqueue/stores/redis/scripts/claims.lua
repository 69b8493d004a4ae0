--# claims: writing
-- PENDING -> ASSIGNED: by priority, then first in, first out. If a queue has weights, its
-- priorities are drawn at random.
--
-- In each call Redis creates all functions of a script again, which costs about as much as a small
-- command each. Most calls have no job to assign. So the functions for assigning are inside
-- hand_out.

-- The fields of a job that are sent to its worker, then its version and status.
local function row_of(id)
  return call(
    'HMGET', document(id), 'seq', 'job_id', 'queue', 'type', 'payload', 'attempt', 'lease',
    'assigned_worker', 'priority', 'retry_count', 'max_retries', 'created_at', 'timeout',
    'expires_at', 'labels', 'more', 'worker_deaths', 'version', 'status'
  )
end

local function shown(row)
  row[14] = row[14] and exact(tonumber(row[14]) - now)
  row[18], row[19] = nil, nil
  return row
end

-- Return those types of a claim that have jobs in a queue, each with its score in the index.
-- If a claim has many or all types, return only the next `count` (0: all) types from a place in the
-- index, and the place to continue from if there may be more. If one of these types is not in the
-- claim, return all types of the claim that have jobs.
local function types_of(name, meant, from, count)
  local key = ready_types(name)
  local few = meant and meant[1] and meant
  if not few then
    if call('EXISTS', key) == 0 then
      return {}
    end
    local types = call('ZRANGE', key, from, from + count - 1, 'WITHSCORES')
    for n = 1, meant and #types or 0, 2 do
      if not meant[types[n]] then
        few = {}
        for type in pairs(meant) do
          few[#few + 1] = type
        end
        break
      end
    end
    if not few then
      return types, #types == 2 * count and from + count or nil
    end
  end
  local types = {}
  for first = 1, #few, MOST do
    local last = math.min(#few, first + MOST - 1)
    for n, score in ipairs(call('ZMSCORE', key, unpack(few, first, last))) do
      if score then
        types[#types + 1] = few[first + n - 1]
        types[#types + 1] = score
      end
    end
  end
  return types
end

-- Assign jobs to the slots of claims. `found` has, for each claim, the queues with jobs for it:
-- {name, types, place in the index where more types follow}.
local function hand_out(claims, found, timeout, seed)
  -- Heaps: the first item is the one with the lowest `head`.

  local function push(heap, one)
    local n = #heap + 1
    heap[n] = one
    while n > 1 do
      local above = math.floor(n / 2)
      if heap[above].head <= one.head then
        break
      end
      heap[n], heap[above] = heap[above], one
      n = above
    end
  end

  -- Restore the order of a heap after the `head` of its first item was changed or removed.
  local function settle(heap)
    local size = #heap
    if not heap[1].head then
      heap[1] = heap[size]
      heap[size] = nil
      size = size - 1
    end
    local n = 1
    while 2 * n <= size do
      local least = 2 * n
      if least < size and heap[least + 1].head < heap[least].head then
        least = least + 1
      end
      if heap[n].head <= heap[least].head then
        break
      end
      heap[n], heap[least] = heap[least], heap[n]
      n = least
    end
  end

  -- A run has the jobs of one type (or of one type and rank) in claim order. It is read in pages.
  -- No job is removed before the end of the script, and all scores are different. `head` is the
  -- score of the next job. Before the first page is read, it is the score in the index, which may
  -- be too low.

  local PAGE = 200
  local ROUNDING = 1e-6 -- core.limits.ROUNDING

  local function read_on(run)
    local size = run.size
    if run.from then
      run.page = call(
        'ZRANGEBYSCORE', run.key, run.from, run.to, 'WITHSCORES', 'LIMIT', run.offset, size
      )
    else
      run.page = call('ZRANGE', run.key, run.offset, run.offset + size - 1, 'WITHSCORES')
    end
    run.place, run.offset = 1, run.offset + size
    run.size = #run.page == 2 * size and math.min(2 * size, PAGE) -- false: no more jobs
    run.head = tonumber(run.page[2])
  end

  local function take(run)
    local id = run.page[run.place]
    remove(run.key, id)
    run.place = run.place + 2
    run.head = tonumber(run.page[run.place + 1])
    if not run.head and run.size then
      read_on(run)
    end
    return id
  end

  -- The limits of a queue, by the rules of core/limits.py. `left` starts are still allowed; `running`
  -- of them by the limit of held jobs.
  local function allowance(name, most, rate)
    local held = call('ZCARD', index('ASSIGNED', name)) + call('ZCARD', index('RUNNING', name))
    local running = most and most - held or math.huge
    local allowed = {left = running, running = running, started = 0}
    if rate then
      local row = call('HMGET', prefix .. 'queue:' .. name, 'rate_period', 'rate_burst')
      local interval = (tonumber(row[1]) or 1) / rate
      local burst = tonumber(row[2]) or math.max(1, math.ceil(1 / interval - ROUNDING))
      local full_at = tonumber(call('HGET', prefix .. 'buckets:' .. name, '') or 0)
      local missing = math.min(math.max(0, full_at - now), burst * interval)
      local tokens = burst
      if missing > ROUNDING then
        tokens = math.floor(burst - (missing - ROUNDING) / interval)
      end
      allowed.left = math.min(running, tokens)
      allowed.interval, allowed.burst, allowed.missing = interval, burst, missing
      allowed.outdated = full_at - now > burst * interval + ROUNDING -- the limit was changed
    end
    return allowed
  end

  local function note_start(queue)
    local allowed = queue.allowed
    if allowed then
      allowed.left, allowed.running = allowed.left - 1, allowed.running - 1
      allowed.started = allowed.started + 1
    end
  end

  local function is_open(queue)
    return not queue.allowed or queue.allowed.left > 0
  end

  -- Write the state of the buckets. Return the queues whose limits allow no further start, each with
  -- the seconds until a rate limit allows one (-1: a held job must end first).
  local function finish_limits(queues)
    local held_back = false
    for name, queue in pairs(queues) do
      local allowed = queue and queue.allowed
      if allowed then
        local missing = allowed.missing and allowed.missing + allowed.started * allowed.interval
        if missing and (allowed.started > 0 or allowed.outdated) then
          call('HSET', prefix .. 'buckets:' .. name, '', exact(now + missing))
        end
        if allowed.left <= 0 then
          local opens_in = -1
          if missing and allowed.running > 0 then
            opens_in = math.max(0, missing - (allowed.burst - 1) * allowed.interval)
          end
          held_back = held_back or {}
          held_back[#held_back + 1] = {name, exact(opens_in)}
        end
      end
    end
    return held_back
  end

  local queues = {} -- by name; the runs of a queue continue from claim to claim

  local function queue_of(name)
    local known = queues[name]
    if known == nil then
      known = false
      local key = prefix .. 'queue:' .. name
      local row = call(
        'HMGET', key, 'name', 'deleted', 'paused', 'priority_weights', 'max_running', 'rate'
      )
      if row[1] and not row[2] and row[3] ~= '1' then
        known = {name = name, runs = {}, weights = row[4] and cjson.decode(row[4])}
        if row[5] or row[6] then
          known.allowed = allowance(name, tonumber(row[5]), tonumber(row[6]))
        end
      end
      queues[name] = known
    end
    return known
  end

  -- Add runs for the types in `types`: {type, score, ...}, as read from the index.
  local function push_types(heap, queue, types, size)
    for n = 1, #types, 2 do
      local type = types[n]
      local run = queue.runs[type]
      if not run then
        local score = tonumber(types[n + 1])
        run = {
          key = ready_set(queue.name, type), head = score, said = score, size = size, offset = 0,
          place = 1, page = false, heap = false, queue = queue,
        }
        queue.runs[type] = run
      end
      if run.head and run.heap ~= heap then
        run.heap = heap
        push(heap, run)
      end
    end
  end

  -- For a queue with weights: a heap of runs for each rank, with all types of the claim.
  local function by_weight(queue, types, wanted)
    local lots = {queue = queue, ranks = {}}

    local function look()
      lots.head = nil
      for rank = 0, 9 do
        local first = lots.ranks[rank][1]
        if first then
          lots.head = first.head
          break
        end
      end
      return lots
    end

    function lots.take()
      local present, total = {}, 0
      for rank = 0, 9 do
        if lots.ranks[rank][1] then
          local weight = queue.weights[tostring(9 - rank)] or 1
          present[#present + 1] = {lots.ranks[rank], weight}
          total = total + weight
        end
      end
      local lot = math.random() * total
      local drawn = present[#present][1]
      for _, one in ipairs(present) do
        lot = lot - one[2]
        if lot < 0 then
          drawn = one[1]
          break
        end
      end
      local run = drawn[1]
      local id = take(run)
      if not run.head then
        note_left(queue.name, run.type)
      end
      settle(drawn)
      look()
      return id
    end

    for rank = 0, 9 do
      lots.ranks[rank] = {}
    end
    for n = 1, #types, 2 do
      local type, score = types[n], tonumber(types[n + 1])
      local key = ready_set(queue.name, type)
      while score do
        local rank = math.floor(score / RANK)
        local place = rank .. ':' .. type
        local run = queue.runs[place]
        if not run then
          run = {
            key = key, type = type, offset = 0, size = math.min(wanted + 1, PAGE),
            from = ready_score(9 - rank, 0),
            to = '(' .. string.format('%.0f', ready_score(8 - rank, 0)),
          }
          queue.runs[place] = run
          read_on(run)
        end
        if run.head then
          push(lots.ranks[rank], run)
        end
        score = tonumber(call(
          'ZRANGEBYSCORE', key, ready_score(8 - rank, 0), '+inf', 'WITHSCORES', 'LIMIT', 0, 1
        )[2])
      end
    end
    return look()
  end

  -- Return the heap from which a claim takes jobs. Its items are runs, queues with weights, and for
  -- the types of a queue that were not read yet one item, which is read when its turn comes.
  local function heap_of(claim, present)
    local heap, wanted, count = {}, #claim[3], 0
    for _, one in ipairs(present) do
      count = count + #one[2] / 2
    end
    local size = wanted + 1 -- one more, to find out if more types follow
    if count > 1 then
      size = math.min(size, math.max(4, math.ceil(2 * wanted / count))) -- its share
    end
    size = math.min(size, PAGE)
    for _, one in ipairs(present) do
      local queue, types, more = queue_of(one[1]), one[2], one[3]
      if queue and not is_open(queue) then
        queue = false
      end
      if queue and queue.weights then
        if more then
          types = types_of(queue.name, claim[4], 0, 0)
        end
        local lots = by_weight(queue, types, wanted)
        if lots.head then
          push(heap, lots)
        end
      elseif queue then
        push_types(heap, queue, types, size)
        queue.several = queue.several or #types > 2
        if more then
          local head = tonumber(types[#types])
          push(heap, {more = more, meant = claim[4], queue = queue, size = size, head = head})
        end
      end
    end
    return heap
  end

  -- Return the next job and its queue.
  local function next_job(heap)
    local first = heap[1]
    while first and not ((first.page or first.take) and is_open(first.queue)) do
      if not is_open(first.queue) then
        local size = #heap
        heap[1] = heap[size]
        heap[size] = nil
        if size > 1 then
          settle(heap)
        end
      elseif first.more then
        local types, more = types_of(first.queue.name, first.meant, first.more, first.more)
        first.more, first.head = more, more and tonumber(types[#types])
        settle(heap)
        push_types(heap, first.queue, types, first.size)
      else
        read_on(first)
        settle(heap)
      end
      first = heap[1]
    end
    if not first then
      return nil
    end
    local id = first.take and first.take() or take(first)
    settle(heap)
    return id, first.queue
  end

  local stamp, due = iso(now), exact(now + timeout)

  local function assign(row, worker, lease)
    local id, queue = row[2], row[3]
    local attempt, version = tostring(row[6] + 1), tostring(row[18] + 1)
    local route, more = route_of(worker), nil
    if route then
      more = '{"partition":' .. route[1] .. ',"incarnation":' .. route[2] .. '}'
      add(UNSTARTED, now_text, id)
    end
    local event = record(
      id, version, 'PENDING', 'ASSIGNED', 'ASSIGNED', now_text, attempt, worker, nil, queue, more
    )
    call(
      'HSET', document(id), 'status', 'ASSIGNED', 'reason', 'ASSIGNED', 'version', version,
      'attempt', attempt, 'assigned_worker', worker, 'lease', lease, 'updated_at', stamp,
      'event:' .. version, event
    )
    hold(worker, id, lease)
    enter(id, row[1], queue, 'PENDING', 'ASSIGNED')
    set_due(id, due)
    row[6], row[7], row[8] = attempt, lease, worker
    return shown(row)
  end

  local MOST_EXPIRED = 1000 -- expired jobs in one call, because Redis does nothing else meanwhile
  local rows, kept = {}, {}
  local expired, ended = 0, nil
  math.randomseed(seed)
  for number, claim in ipairs(claims) do
    local heap = heap_of(claim, found[number])
    local slot, slots = 1, claim[3]
    while slot <= #slots do
      local id, queue = next_job(heap)
      if not id then
        break
      end
      local row = row_of(id)
      -- An expired job stays PENDING, but is not claimable, until the sweeper ends it. If a job is
      -- not PENDING, a server of an earlier version has ended it, which does not know this set.
      if row[19] == 'PENDING' and (not row[14] or tonumber(row[14]) > now) then
        rows[#rows + 1] = assign(row, slots[slot][1], slots[slot][2])
        kept[#kept + 1] = {id, slots[slot][2]}
        note_start(queue)
        slot = slot + 1
      else
        expired = expired + 1
        if expired == MOST_EXPIRED then
          local left = {}
          for n = slot, #slots do
            left[#left + 1] = slots[n][1]
          end
          ended = {number, left}
          break
        end
      end
    end
    if ended then
      break
    end
  end
  -- Write the score of each type's first job to the index. The score of a single type may stay too
  -- low.
  for name, queue in pairs(queues) do
    for type, run in pairs(queue and not queue.weights and queue.runs or {}) do
      if not run.head then
        remove(ready_types(name), type)
      elseif queue.several and run.head ~= run.said then
        add(ready_types(name), run.head, type)
      end
    end
  end
  flush()
  return rows, kept, ended, finish_limits(queues)
end

-- Fill claims {queues (nil: all), excluded queues, slots {{worker, lease}, ...}, types (nil: all; a
-- list of few, or a set of many)}. Returns the rows of the assigned jobs, and {id, lease} of each
-- job to find the row again. If there were too many expired jobs, also returns where the script
-- stopped: {number of the claim, workers of its remaining slots}. If limits of queues may have held
-- jobs back, also returns {queue, seconds until a rate limit allows a start (-1: not known)} of each.
local function fill(claims, timeout, seed)
  local found, some = {}, false
  for number, claim in ipairs(claims) do
    local without, present = {}, {}
    for _, name in ipairs(claim[2]) do
      without[name] = true
    end
    for _, name in ipairs(claim[1] or call('SMEMBERS', prefix .. 'queues')) do
      if not without[name] then
        local types, more = types_of(name, claim[4], 0, #claim[3] + 1)
        if types[1] then
          present[#present + 1] = {name, types, more}
          some = true
        end
      end
      without[name] = true -- a queue may be named twice
    end
    found[number] = present
  end
  if not some then
    return {}, {}
  end
  return hand_out(claims, found, timeout, seed)
end

--# claiming: numbered, term, claims
-- A write that fills claims at its end. Its stored answer is {its own answer, {id, lease} of each
-- job}.
local before = answered()
if before then
  if before.err then
    return before
  end
  local rows = {}
  for _, one in ipairs(before[2]) do
    local row = row_of(one[1])
    if row[7] == one[2] then -- the lease is still in force
      rows[#rows + 1] = shown(row)
    end
  end
  return {before[1], rows}
end

-- Returns {said, rows, queues that were held back, queues with a limit in which a lease ended}. The
-- last two are false if there are none. `wrote` is true if the answer must be stored even if no job
-- was assigned.
local function finish(said, rows, kept, wrote, held_back, freed)
  give_back()
  if wrote or #kept > 0 then
    answer({said, kept})
  end
  return {said, rows, held_back or false, freed or false}
end

--# claim: claiming
-- PENDING -> ASSIGNED for free slots.
--
-- asked: {claims, assignment timeout, seed, term or nil, true to notify the workers}. Returns
-- {where the script stopped early, rows}, or nothing if the term is over.
--
-- With a term, workers are not connected to the process that claims, which learns late that a
-- worker has stopped. Jobs are not assigned to such a worker, because they would be lost with it.
if asked[4] and not stands(asked[4]) then
  return false
end
local slots = 0
for _, claim in ipairs(asked[1]) do
  if asked[4] then
    local online = {}
    for _, slot in ipairs(claim[3]) do
      local route = route_of(slot[1])
      if route and route[3] == 'ONLINE' then
        online[#online + 1] = slot
      end
    end
    claim[3] = online
  end
  slots = slots + #claim[3]
end
expect_events(math.min(slots, 100))
local rows, kept, ended, held_back = fill(asked[1], asked[2], asked[3])
if asked[5] and #kept > 0 then
  tell(ASSIGNED)
end
return finish(ended or false, rows, kept, false, held_back)

--# standing: claims
-- Return the rows, as `claim` does, of jobs that are assigned to a worker and not started.
-- asked: {ids (nil: all jobs of the worker), worker, its incarnation (nil: any)}. An incarnation
-- that was replaced has no such jobs.
local rows = {}
if asked[3] and call('HGET', prefix .. 'worker:' .. asked[2], 'incarnation') ~= asked[3] then
  return rows
end
for _, id in ipairs(asked[1] or call('HKEYS', prefix .. 'current_jobs:' .. asked[2])) do
  local row = call('HMGET', document(id), 'status', 'assigned_worker')
  if row[1] == 'ASSIGNED' and row[2] == asked[2] then
    rows[#rows + 1] = shown(row_of(id))
  end
end
return rows

--# repeat_assignments: led_write, routes, outbox
-- Repeat the hints of assignments that were not started within some seconds. Each hint is repeated
-- at most once in this time. Returns {hints repeated, assignments read}, or nothing if the term is
-- over.
-- asked: {term, seconds, limit}
if call('EXISTS', MARK) == 0 then
  return {0, 0} -- hints need a stream
end
local old = call(
  'ZRANGEBYSCORE', UNSTARTED, '-inf', '(' .. exact(now - asked[2]), 'LIMIT', 0, asked[3]
)
local said = 0
for _, id in ipairs(old) do
  local row = call('HMGET', document(id), 'queue', 'seq', 'attempt', 'assigned_worker')
  local route = route_of(row[4])
  if route then -- else the worker is lost, and its jobs will be failed over
    put(
      'repeated', 'job_id', id, 'queue', row[1], 'seq', row[2], 'attempt', row[3],
      'worker_id', row[4], 'partition', route[1], 'incarnation', route[2]
    )
    said = said + 1
  end
  call('ZADD', UNSTARTED, now_text, id)
end
return #old > 0 and answer({said, #old}) or {0, 0}
