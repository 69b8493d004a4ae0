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
      local type = types[n]
      if not meant[type] and not (string.byte(type) == 0 and meant[string.sub(type, 2)]) then
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
  if call('EXISTS', ready_keys(name)) == 1 then
    local all = {}
    for _, type in ipairs(few) do
      all[#all + 1] = type
      all[#all + 1] = keyed_type(type)
    end
    few = all
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

  -- A job with a concurrency key is in two sets. `taken_key` is the key of the job taken last.
  local taken_key

  local function take(run)
    local id = run.page[run.place]
    remove(run.key, id)
    taken_key = nil
    if run.keyed == 'type' then
      taken_key = call('HGET', document(id), 'concurrency_key')
      leave_key(run.queue.name, taken_key, string.sub(run.type, 2), id)
    elseif run.keyed then
      taken_key = run.of
      local type = keyed_type(run.type)
      remove(ready_set(run.queue.name, type), id)
      note_left(run.queue.name, type)
    end
    run.place = run.place + 2
    run.head = tonumber(run.page[run.place + 1])
    if not run.head and run.size then
      read_on(run)
    end
    return id
  end

  -- What is left of limits, by the rules of core/limits.py: `left` starts are still allowed, `running`
  -- of them by the limit of held jobs. `limits` are that limit, then rate, period and burst of the
  -- limit of starts; false: none.
  local function allowance(limits, held, full_at)
    local running = limits[1] and limits[1] - held or math.huge
    local allowed = {left = running, running = running, started = 0}
    if limits[2] then
      local interval = (limits[3] or 1) / limits[2]
      local burst = limits[4] or math.max(1, math.ceil(1 / interval - ROUNDING))
      full_at = tonumber(full_at or 0)
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

  local function note_start(allowed)
    allowed.left, allowed.running = allowed.left - 1, allowed.running - 1
    allowed.started = allowed.started + 1
  end

  local function is_open(queue)
    return not queue.allowed or queue.allowed.left > 0
  end

  -- Write the state of the bucket of a queue or of a key, if it has changed. Return the seconds until
  -- another start is allowed, or nil if one is allowed now.
  local function close(allowed, name, key)
    local missing = allowed.missing and allowed.missing + allowed.started * allowed.interval
    if missing and (allowed.started > 0 or allowed.outdated) then
      if key then
        -- Full buckets are removed, because a bucket that is missing is full.
        call('ZREMRANGEBYSCORE', key_buckets(name), '-inf', now_text)
        call('ZADD', key_buckets(name), exact(now + missing), key)
      else
        call('HSET', prefix .. 'buckets:' .. name, '', exact(now + missing))
      end
    end
    if allowed.left <= 0 then
      if missing and allowed.running > 0 then
        return math.max(0, missing - (allowed.burst - 1) * allowed.interval)
      end
      return math.huge
    end
  end

  -- Write the state of all buckets. Return the queues whose limits, or those of their keys, allow no
  -- further start, each with the seconds until a rate limit allows one (-1: a held job must end).
  local function finish_limits(queues)
    local held_back = false
    for name, queue in pairs(queues) do
      local opens_in = queue and queue.allowed and close(queue.allowed, name)
      local of_keys = math.huge
      local closed = opens_in
      for key, allowed in pairs(queue and queue.keys or {}) do
        local opens = close(allowed, name, key)
        if opens and key ~= '' then
          closed = closed or opens
          of_keys = math.min(of_keys, opens)
        end
      end
      if closed then
        opens_in = opens_in or of_keys
        held_back = held_back or {}
        held_back[#held_back + 1] = {name, opens_in < math.huge and exact(opens_in) or '-1'}
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
        'HMGET', key, 'name', 'deleted', 'paused', 'priority_weights', 'max_running', 'rate',
        'key_max_running', 'key_rate', 'key_weights'
      )
      if row[1] and not row[2] and row[3] ~= '1' then
        known = {name = name, runs = {}, weights = row[4] and cjson.decode(row[4])}
        if row[5] or row[6] or row[7] or row[8] or row[9] then
          known.held = call('ZCARD', index('ASSIGNED', name)) + call('ZCARD', index('RUNNING', name))
          local more = call(
            'HMGET', key, 'rate_period', 'rate_burst', 'key_rate_period', 'key_rate_burst'
          )
          local function numbers(...)
            local found = {...}
            for n, value in ipairs(found) do
              found[n] = tonumber(value or nil) or false
            end
            return found
          end
          local limits = numbers(row[5], row[6], more[1], more[2])
          known.allowed = allowance(
            limits, known.held, limits[2] and call('HGET', prefix .. 'buckets:' .. name, '')
          )
          if row[7] or row[8] or row[9] then
            known.key_limits = numbers(row[7], row[8], more[3], more[4])
            known.shares = row[9] and cjson.decode(row[9])
          end
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
          place = 1, page = false, heap = false, queue = queue, type = type,
          keyed = string.byte(type) == 0 and 'type',
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
            queue = queue, keyed = string.byte(type) == 0 and 'type',
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

  -- For a queue whose limits or shares tell concurrency keys apart, by the rules of core/turns.py.
  -- A line is a run of one key ('': none) and type; with weights of priorities, also of one rank.
  local MOST_LINES = 2000 -- that a claim looks at; of more, some by lot

  local function by_key(queue, types, meant, wanted)
    queue.keys = queue.keys or {}
    local lots, lines = {queue = queue}, {}

    local function add_line(place, line, score)
      local known = queue.runs[place]
      if not known then
        line.queue, line.offset, line.size = queue, 0, math.min(wanted + 1, 4)
        line.place, line.page, line.head, line.said = 1, false, score, score
        queue.runs[place] = line
        known = line
      end
      if not known.page then
        read_on(known)
      end
      if known.head then
        lines[#lines + 1] = known
      end
    end

    -- Add the lines of a set: one, or one for each rank.
    local function add_lines(place, set, key, type, score)
      if not queue.weights then
        add_line(place, {key = set, of = key, type = type, keyed = key ~= '' and 'key'}, score)
        return
      end
      while score do
        local rank = math.floor(score / RANK)
        add_line(rank .. ':' .. place, {
          key = set, of = key, type = type, keyed = key ~= '' and 'key', rank = rank,
          from = ready_score(9 - rank, 0),
          to = '(' .. string.format('%.0f', ready_score(8 - rank, 0)),
        }, score)
        score = tonumber(call(
          'ZRANGEBYSCORE', set, ready_score(8 - rank, 0), '+inf', 'WITHSCORES', 'LIMIT', 0, 1
        )[2])
      end
    end

    for n = 1, #types, 2 do
      if string.byte(types[n]) ~= 0 then
        add_lines(types[n], ready_set(queue.name, types[n]), '', types[n], tonumber(types[n + 1]))
      end
    end
    local members = ready_keys(queue.name)
    local count, from = call('ZCARD', members), 0
    if count > MOST_LINES then
      from = math.random(0, count - 1)
    end
    local found = call('ZRANGE', members, from, from + MOST_LINES - 1, 'WITHSCORES')
    if from + MOST_LINES > count and from > 0 then
      local rest = call('ZRANGE', members, 0, from + MOST_LINES - count - 1, 'WITHSCORES')
      for _, value in ipairs(rest) do
        found[#found + 1] = value
      end
    end
    local wants = meant and meant[1] and {}
    for _, type in ipairs(wants and meant or {}) do
      wants[type] = true
    end
    wants = wants or meant
    local seen = {}
    for n = 1, #found, 2 do
      local key, type = string.match(found[n], '^([^%z]*)%z(.*)$')
      if not wants or wants[type] then
        add_lines('\0' .. found[n], key_set(queue.name, found[n]), key, type, tonumber(found[n + 1]))
        if not queue.keys[key] then
          queue.keys[key] = true
          seen[#seen + 1] = key
        end
      end
    end

    -- What the limits of the keys allow.
    local held_of = prefix .. 'key_held:' .. queue.name
    for first = 1, #seen, MOST do
      local last = math.min(#seen, first + MOST - 1)
      local held = call('HMGET', held_of, unpack(seen, first, last))
      local full = queue.key_limits[2]
        and call('ZMSCORE', key_buckets(queue.name), unpack(seen, first, last)) or {}
      for n = first, last do
        local holds = tonumber(held[n - first + 1] or nil) or 0
        local allowed = allowance(queue.key_limits, holds, full[n - first + 1])
        allowed.held = holds
        queue.keys[seen[n]] = allowed
      end
    end
    if not queue.keys[''] then
      local others = 0
      for _, holds in ipairs(queue.shares and call('HVALS', held_of) or {}) do
        others = others + holds
      end
      queue.keys[''] = allowance({false, false}, 0)
      queue.keys[''].held = queue.held - others
    end

    -- A pile has lines that compete by age: those of one key, or without shares all of them. Its heaps
    -- are by rank if there are weights of priorities.
    local function best_of(pile)
      local present, total = {}, 0
      for rank, heap in pairs(pile) do
        while heap[1] and queue.keys[heap[1].of].left <= 0 do
          local size = #heap
          heap[1] = heap[size]
          heap[size] = nil
          if size > 1 then
            settle(heap)
          end
        end
        if heap[1] then
          local weight = queue.weights and queue.weights[tostring(9 - rank)] or 1
          present[#present + 1] = {heap, weight}
          total = total + weight
        end
      end
      if #present < 2 then
        return present[1] and present[1][1]
      end
      local lot = math.random() * total
      for _, one in ipairs(present) do
        lot = lot - one[2]
        if lot < 0 then
          return one[1]
        end
      end
      return present[#present][1]
    end

    local piles = {}
    for _, line in ipairs(lines) do
      local pile = table_of(piles, queue.shares and line.of or '')
      push(table_of(pile, line.rank or 0), line)
    end

    -- With shares: a heap of the keys, that with the fewest held jobs for its weight first. A small
    -- random part decides between equal keys, by their weights.
    local function turn(key)
      local weight = queue.shares[key ~= '' and key or '*'] or queue.shares['*'] or 1
      local allowed = queue.keys[key]
      local lot = -math.log(1 - math.random()) / weight
      return (allowed.held + allowed.started) / weight + lot * 1e-9
    end

    local order = {}
    for key, pile in pairs(queue.shares and piles or {}) do
      push(order, {head = turn(key), key = key, pile = pile})
    end

    -- The most urgent line stands for the queue beside other queues.
    local function look()
      lots.next, lots.head = nil, nil
      if not queue.shares then
        lots.next = piles[''] and best_of(piles[''])
      else
        while order[1] and not lots.next do
          lots.next = best_of(order[1].pile)
          if not lots.next then
            local size = #order
            order[1] = order[size]
            order[size] = nil
            if size > 1 then
              settle(order)
            end
          end
        end
      end
      lots.head = lots.next and (lots.urgent or lots.next[1].head)
    end

    if queue.shares then
      for _, line in ipairs(lines) do
        if queue.keys[line.of].left > 0 then
          lots.urgent = math.min(lots.urgent or math.huge, line.head)
        end
      end
    end

    -- Return the next job and what its key may start. The caller says whether the job was started.
    function lots.take()
      local heap = lots.next
      local line = heap[1]
      local id = take(line)
      if not line.head then
        if line.of == '' then
          note_left(queue.name, line.type)
        else
          table_of(keys_left, queue.name)[line.of .. '\0' .. line.type] = true
        end
      end
      settle(heap)
      return id, queue.keys[line.of]
    end

    function lots.after()
      if order[1] then
        order[1].head = turn(order[1].key)
        settle(order)
      end
      look()
    end

    look()
    return lots
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
      if queue and (queue.weights or queue.key_limits) then
        if more then
          types = types_of(queue.name, claim[4], 0, 0)
        end
        local lots = queue.key_limits and by_key(queue, types, claim[4], wanted)
          or by_weight(queue, types, wanted)
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
    if first.after then -- the turn of keys depends on whether the job is started
      local id, allowed = first.take()
      return id, first.queue, allowed, function()
        first.after()
        settle(heap)
      end
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
      local id, queue, of_key, after = next_job(heap)
      if not id then
        break
      end
      local row = row_of(id)
      -- An expired job stays PENDING, but is not claimable, until the sweeper ends it. If a job is
      -- not PENDING, a server of an earlier version has ended it, which does not know this set.
      if row[19] == 'PENDING' and (not row[14] or tonumber(row[14]) > now) then
        rows[#rows + 1] = assign(row, slots[slot][1], slots[slot][2])
        if taken_key then
          hold_key(queue.name, id, taken_key)
        end
        kept[#kept + 1] = {id, slots[slot][2]}
        if queue.allowed then
          note_start(queue.allowed)
        end
        if of_key then
          note_start(of_key)
        end
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
      if after then
        after()
      end
    end
    if ended then
      break
    end
  end
  -- Write the score of each type's first job to the index. The score of a single type may stay too
  -- low.
  for name, queue in pairs(queues) do
    local by_type = queue and not queue.weights and not queue.key_limits
    for type, run in pairs(by_type and queue.runs or {}) do
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
