-- PENDING -> ASSIGNED: priority first, then first in, first out; or by lot where a queue has
-- weights. Needs common.lua, routes.lua and jobs.lua.
--
-- Redis makes every function of a script anew in each call, at a price like that of a small command,
-- and most calls have nothing to hand out. So what only that needs is inside of hand_out.

-- What a worker gets of a job; behind it the version and the status.
local function row_of(id)
  return redis.call(
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

-- What an earlier call assigned, as far as the leases still stand.
local function found_again(kept)
  local rows = {}
  for _, one in ipairs(kept) do
    local row = row_of(one[1])
    if row[7] == one[2] then
      rows[#rows + 1] = shown(row)
    end
  end
  return rows
end

-- Types of a queue that have jobs and that a claim means, each with its score in the index. If a claim
-- means many, or all: the next so many (0: all) from a place in the index, and where to go on if
-- there may be more. But if one of these is not meant: all that are, however many others there are.
local function types_of(name, meant, from, count)
  local key = ready_types(name)
  local few = meant and meant[1] and meant
  if not few then
    if redis.call('EXISTS', key) == 0 then
      return {}
    end
    local types = redis.call('ZRANGE', key, from, from + count - 1, 'WITHSCORES')
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
    for n, score in ipairs(redis.call('ZMSCORE', key, unpack(few, first, last))) do
      if score then
        types[#types + 1] = few[first + n - 1]
        types[#types + 1] = score
      end
    end
  end
  return types
end

-- Give jobs to the slots of claims. `found` has, for each claim, {queue, types, where there are more}
-- of those queues that have something for it.
local function hand_out(claims, found, timeout, seed)
  -- Heaps: the first has the lowest `head`.

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

  -- The first one has another head, or none any more.
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

  -- A run is the jobs of one type in their order, or those of one rank among them, read page by page.
  -- Nothing is removed before the end, and no two have the same score. `head` is the score of the
  -- next job; before the first page it is what the index says, which may be too early.

  local PAGE = 200

  local function read_on(run)
    local size = run.size
    if run.from then
      run.page = redis.call(
        'ZRANGEBYSCORE', run.key, run.from, run.to, 'WITHSCORES', 'LIMIT', run.offset, size
      )
    else
      run.page = redis.call('ZRANGE', run.key, run.offset, run.offset + size - 1, 'WITHSCORES')
    end
    run.place, run.offset = 1, run.offset + size
    run.size = #run.page == 2 * size and math.min(2 * size, PAGE) -- false: there are no more
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

  local queues = {} -- as this call sees them; their runs go on from claim to claim

  local function queue_of(name)
    local known = queues[name]
    if known == nil then
      known = false
      local row = redis.call(
        'HMGET', prefix .. 'queue:' .. name, 'name', 'deleted', 'paused', 'priority_weights'
      )
      if row[1] and not row[2] and row[3] ~= '1' then
        known = {name = name, runs = {}, weights = row[4] and cjson.decode(row[4])}
      end
      queues[name] = known
    end
    return known
  end

  -- Runs of types, as the index has them.
  local function push_types(heap, queue, types, size)
    for n = 1, #types, 2 do
      local type = types[n]
      local run = queue.runs[type]
      if not run then
        local score = tonumber(types[n + 1])
        run = {
          key = ready_set(queue.name, type), head = score, said = score, size = size, offset = 0,
          place = 1, page = false, heap = false,
        }
        queue.runs[type] = run
      end
      if run.head and run.heap ~= heap then
        run.heap = heap
        push(heap, run)
      end
    end
  end

  -- A queue with weights: a heap of runs for each rank, of all types that are meant.
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
            key = key, type = type, offset = 0, size = math.min(wanted + 1, PAGE), from = ready_score(9 - rank, 0),
            to = '(' .. string.format('%.0f', ready_score(8 - rank, 0)),
          }
          queue.runs[place] = run
          read_on(run)
        end
        if run.head then
          push(lots.ranks[rank], run)
        end
        score = tonumber(redis.call(
          'ZRANGEBYSCORE', key, ready_score(8 - rank, 0), '+inf', 'WITHSCORES', 'LIMIT', 0, 1
        )[2])
      end
    end
    return look()
  end

  -- What a claim takes from: runs, queues with weights, and further types of a queue, to be read when
  -- the next job may be of one of them.
  local function heap_of(claim, present)
    local heap, wanted, count = {}, #claim[3], 0
    for _, one in ipairs(present) do
      count = count + #one[2] / 2
    end
    local size = wanted + 1 -- to see whether there are more
    if count > 1 then
      size = math.min(size, math.max(4, math.ceil(2 * wanted / count))) -- its share
    end
    size = math.min(size, PAGE)
    for _, one in ipairs(present) do
      local queue, types, more = queue_of(one[1]), one[2], one[3]
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
          push(heap, {
            more = more, meant = claim[4], queue = queue, size = size, head = tonumber(types[#types]),
          })
        end
      end
    end
    return heap
  end

  local function next_job(heap)
    local first = heap[1]
    while first and not (first.page or first.take) do
      if first.more then
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
    return id
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
    redis.call(
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

  local MOST_EXPIRED = 1000 -- passed over in one call: Redis does nothing else meanwhile
  local rows, kept = {}, {}
  local expired, ended = 0, nil
  math.randomseed(seed)
  for number, claim in ipairs(claims) do
    local heap = heap_of(claim, found[number])
    local slot, slots = 1, claim[3]
    while slot <= #slots do
      local id = next_job(heap)
      if not id then
        break
      end
      local row = row_of(id)
      -- An expired one stays PENDING, but claimable no more, until the sweeper finds it. One that is
      -- not PENDING was ended by a server of an earlier version, which does not know this set.
      if row[19] == 'PENDING' and (not row[14] or tonumber(row[14]) > now) then
        rows[#rows + 1] = assign(row, slots[slot][1], slots[slot][2])
        kept[#kept + 1] = {id, slots[slot][2]}
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
  -- Types stand in the index where their first job does now; one alone may stand anywhere before.
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
  return rows, kept, ended
end

-- claims: {queues (nil: all), those not meant, slots {{worker, lease}, ...}, types (nil: all; a list if
-- they are few, otherwise a set)}. Answers what a worker gets, and {id, lease} of each, which is
-- enough to find it again. If there were too many expired jobs, also where it ended: {the number of
-- the claim, workers of its slots that are left}.
local function fill(claims, timeout, seed)
  local found, some = {}, false
  for number, claim in ipairs(claims) do
    local without, present = {}, {}
    for _, name in ipairs(claim[2]) do
      without[name] = true
    end
    for _, name in ipairs(claim[1] or redis.call('SMEMBERS', prefix .. 'queues')) do
      if not without[name] then
        local types, more = types_of(name, claim[4], 0, #claim[3] + 1)
        if types[1] then
          present[#present + 1] = {name, types, more}
          some = true
        end
      end
      without[name] = true -- named twice, it is still one
    end
    found[number] = present
  end
  if not some then
    return {}, {}
  end
  return hand_out(claims, found, timeout, seed)
end
