-- PENDING -> ASSIGNED: priority first, then first in, first out; or by lot where a queue has
-- weights. Needs common.lua and jobs.lua.

-- Members of a sorted set in the order of their scores, read page by page. Nothing is removed
-- before the end, and no two have the same score.
local function run_of(key, from, to, size)
  return {key = key, from = from, to = to, size = size, page = {}, place = 1, dry = false}
end

local PAGE = 200

local function peek(run)
  if run.place > #run.page and not run.dry then
    local size = math.min(run.size, PAGE)
    run.page = redis.call(
      'ZRANGEBYSCORE', run.key, run.from, run.to, 'WITHSCORES', 'LIMIT', 0, size
    )
    run.place, run.size = 1, 2 * size
    run.dry = #run.page < 2 * size
    run.from = not run.dry and '(' .. run.page[#run.page]
  end
  return run.page[run.place], tonumber(run.page[run.place + 1])
end

local function take(run)
  run.place = run.place + 2
end

local boards = {} -- queues as this call saw them

local function board(name)
  local known = boards[name]
  if known == nil then
    known = false
    local row = redis.call(
      'HMGET', prefix .. 'queue:' .. name, 'name', 'deleted', 'paused', 'priority_weights'
    )
    if row[1] and not row[2] and row[3] ~= '1' then
      known = {name = name, runs = {}, weights = row[4] and cjson.decode(row[4])}
    end
    boards[name] = known
  end
  return known
end

-- The jobs of one type, or those of one rank among them. Every claim of a call goes on where the one
-- before ended; `head` is the score of the next one, and `said` what the index says of it.
local function jobs_of(queue, type, rank, size, said)
  local place = rank and rank .. ':' .. type or type
  local run = queue.runs[place]
  if not run then
    run = run_of(
      ready_set(queue.name, type),
      rank and ready_score(9 - rank, 0) or '-inf',
      rank and '(' .. string.format('%.0f', ready_score(8 - rank, 0)) or '+inf',
      size
    )
    run.type, run.said = type, said
    local _, head = peek(run)
    run.head = head
    queue.runs[place] = run
  end
  return run
end

-- A merge is {heap, types, floor, size}: runs in the order of their heads, and types that were not
-- looked at yet, whose jobs come after the floor.

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

-- The run with the next job. A type is looked at when its first job may be the next.
local function first_of(queue, merge)
  while true do
    local run = merge.heap[1]
    if run and run.head <= merge.floor then
      return run
    end
    local type, head = peek(merge.types)
    if not type or (run and run.head < head) then
      return run
    end
    take(merge.types)
    merge.floor = head
    local found = jobs_of(queue, type, nil, merge.size, head)
    if found.head then
      push(merge.heap, found)
    end
  end
end

-- The types of a queue that a claim means, in the order of the index: as a run.
local function types_of(name, meant, wanted)
  local key = READY_TYPES .. name
  if not meant then
    return run_of(key, '-inf', '+inf', wanted)
  end
  local present = {}
  for from = 1, #meant, MOST do
    local part = {unpack(meant, from, math.min(#meant, from + MOST - 1))}
    for n, said in ipairs(redis.call('ZMSCORE', key, unpack(part))) do
      if said then
        present[#present + 1] = {part[n], tonumber(said)}
      end
    end
  end
  if #present > 1 then
    table.sort(present, function(a, b) return a[2] < b[2] end)
  end
  local page = {}
  for n, one in ipairs(present) do
    page[2 * n - 1], page[2 * n] = one[1], one[2]
  end
  return {page = page, place = 1, dry = true}
end

local MANY = 20 -- types: with many queues most are empty, and that is asked first

-- A queue as one claim sees it; nothing, if it has no job for it. One with weights has a merge for
-- each priority, and has looked at every type.
local function view_of(name, meant, wanted)
  if meant and #meant > MANY and redis.call('EXISTS', READY_TYPES .. name) == 0 then
    return nil
  end
  local types = types_of(name, meant, wanted)
  local queue = peek(types) and board(name)
  if not queue then
    return nil
  end
  if not queue.weights then
    local size = wanted + 1 -- to see whether there are more
    if #types.page > 2 then
      size = math.max(4, math.ceil(2 * wanted / #types.page)) -- its share, and more if need be
    end
    return {queue = queue, merges = {{heap = {}, types = types, floor = -1, size = size}}}
  end
  local view = {queue = queue, merges = {}}
  for rank = 0, 9 do
    view.merges[rank + 1] = {
      heap = {}, types = {page = {}, place = 1, dry = true}, floor = -1,
      weight = queue.weights[tostring(9 - rank)] or 1,
    }
  end
  local type, said = peek(types)
  while type do
    take(types)
    while said do
      local rank = math.floor(said / RANK)
      local run = jobs_of(queue, type, rank, wanted + 1)
      if run.head then
        push(view.merges[rank + 1].heap, run)
      end
      said = redis.call(
        'ZRANGEBYSCORE', ready_set(name, type), ready_score(8 - rank, 0), '+inf',
        'WITHSCORES', 'LIMIT', 0, 1
      )[2]
    end
    type, said = peek(types)
  end
  return view
end

-- What a queue competes with against others: the score of its most urgent job.
local function look(view)
  view.head = nil
  for _, merge in ipairs(view.merges) do
    local run = first_of(view.queue, merge)
    if run then
      view.head, view.first = run.head, merge
      break
    end
  end
end

local function draw(view)
  local present, total = {}, 0
  for _, merge in ipairs(view.merges) do
    if merge.heap[1] then
      present[#present + 1] = merge
      total = total + merge.weight
    end
  end
  local lot = math.random() * total
  for _, merge in ipairs(present) do
    lot = lot - merge.weight
    if lot < 0 then
      return merge
    end
  end
  return present[#present]
end

-- Views are a heap, too.
local function next_job(views)
  local view = views[1]
  if not view then
    return nil
  end
  local merge = view.queue.weights and draw(view) or view.first
  local run = merge.heap[1]
  local id = peek(run)
  take(run)
  remove(run.key, id)
  local _, following = peek(run)
  run.head, run.said = following, nil
  if not following then
    note_left(view.queue.name, run.type)
  end
  settle(merge.heap)
  look(view)
  settle(views)
  return id
end

local SHOWN = {
  'seq', 'job_id', 'queue', 'type', 'payload', 'attempt', 'lease', 'assigned_worker', 'priority',
  'retry_count', 'max_retries', 'created_at', 'timeout', 'expires_at', 'labels', 'version',
  'status',
}

local function shown(row)
  row[14] = row[14] and exact(tonumber(row[14]) - now)
  row[16], row[17] = nil, nil
  return row
end

local stamp

local function assign(row, worker, lease, due)
  local id, queue, attempt, version = row[2], row[3], row[6] + 1, row[16] + 1
  local route, more = route_of(worker), nil
  if route then
    more = '{"partition":' .. route[1] .. ',"incarnation":' .. route[2] .. '}'
    add(UNSTARTED, now_text, id)
  end
  local event = record(
    id, version, 'PENDING', 'ASSIGNED', 'ASSIGNED', now_text, attempt, worker, nil, queue, more
  )
  stamp = stamp or iso(now)
  redis.call(
    'HSET', document(id), 'status', 'ASSIGNED', 'reason', 'ASSIGNED', 'version', version,
    'attempt', attempt, 'assigned_worker', worker, 'lease', lease, 'updated_at', stamp,
    'event:' .. version, event
  )
  hold(worker, id, lease)
  enter(id, tonumber(row[1]), queue, 'PENDING', 'ASSIGNED')
  set_due(id, due)
  row[6], row[7], row[8] = tostring(attempt), lease, worker
  return shown(row)
end

local MOST_EXPIRED = 1000 -- passed over in one call: Redis does nothing else meanwhile

-- claims: {queues (nil: all), those not meant, slots {{worker, lease}, ...}, types (nil: all)}. Answers
-- what a worker gets, and {id, lease} of each, which is enough to find it again. If there were too
-- many expired jobs, also where it ended: {the number of the claim, workers of its slots that are
-- left}.
local function fill(claims, timeout, seed)
  local rows, kept, due = {}, {}, exact(now + timeout)
  local expired, ended = 0, nil
  math.randomseed(seed)
  for number, claim in ipairs(claims) do
    local without, views = {}, {}
    for _, name in ipairs(claim[2]) do
      without[name] = true
    end
    for _, name in ipairs(claim[1] or redis.call('SMEMBERS', prefix .. 'queues')) do
      local view = not without[name] and view_of(name, claim[4], #claim[3])
      if view then
        look(view)
        if view.head then
          push(views, view)
        end
      end
      without[name] = true -- named twice, it is still one
    end
    local slot, slots = 1, claim[3]
    while slot <= #slots do
      local id = next_job(views)
      if not id then
        break
      end
      local row = redis.call('HMGET', document(id), unpack(SHOWN))
      -- An expired one stays PENDING, but claimable no more, until the sweeper finds it. One that is
      -- not PENDING was ended by a server of an earlier version, which does not know this set.
      if row[17] == 'PENDING' and (not row[14] or tonumber(row[14]) > now) then
        rows[#rows + 1] = assign(row, slots[slot][1], slots[slot][2], due)
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
  -- Types that were looked at in vain stand too early in the index.
  for name, queue in pairs(boards) do
    for type, run in pairs(queue and queue.runs or {}) do
      if run.said and run.head and run.said < run.head then
        add(READY_TYPES .. name, run.head, type)
      end
    end
  end
  flush()
  return rows, kept, ended
end

-- What an earlier call assigned, as far as the leases still stand.
local function found_again(kept)
  local rows = {}
  for _, one in ipairs(kept) do
    local row = redis.call('HMGET', document(one[1]), unpack(SHOWN))
    if row[7] == one[2] then
      rows[#rows + 1] = shown(row)
    end
  end
  return rows
end
