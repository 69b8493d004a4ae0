-- PENDING -> ASSIGNED: priority first, then first in, first out; or by lot where a queue has
-- weights. Needs common.lua and jobs.lua.

-- One run of a queue's claimable jobs, read page by page. Nothing is removed before the end.
local function run_of(key, from, to)
  return {key = key, from = from, to = to, page = {}, place = 1, dry = false}
end

local PAGE = 200

local function peek(run, wanted)
  if run.place > #run.page and not run.dry then
    run.page = redis.call(
      'ZRANGEBYSCORE', run.key, run.from, run.to,
      'WITHSCORES', 'LIMIT', 0, math.min(wanted, PAGE)
    )
    run.place = 1
    run.dry = #run.page == 0
    run.from = not run.dry and '(' .. run.page[#run.page] -- no two jobs have the same score
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
      known = {runs = {}}
      local key = READY .. name
      if row[4] then
        known.weights = cjson.decode(row[4])
        for priority = 9, 0, -1 do
          local run = run_of(
            key, ready_score(priority, 0), '(' .. string.format('%.0f', ready_score(priority - 1, 0))
          )
          run.weight = known.weights[tostring(priority)] or 1
          known.runs[#known.runs + 1] = run
        end
      else
        known.runs[1] = run_of(key, '-inf', '+inf')
      end
    end
    boards[name] = known
  end
  return known
end

-- The most urgent job of a queue: what it competes with against others.
local function head(queue, wanted)
  for _, run in ipairs(queue.runs) do
    local id, score = peek(run, wanted)
    if id then
      return run, score
    end
  end
end

local function draw(queue, wanted)
  local present, total = {}, 0
  for _, run in ipairs(queue.runs) do
    if peek(run, wanted) then
      present[#present + 1] = run
      total = total + run.weight
    end
  end
  local lot = math.random() * total
  for _, run in ipairs(present) do
    lot = lot - run.weight
    if lot < 0 then
      return run
    end
  end
  return present[#present]
end

local function next_job(queues, wanted)
  local best, lowest, first
  for _, queue in ipairs(queues) do
    local run, score = head(queue, wanted)
    if run and (not best or score < lowest) then
      best, lowest, first = queue, score, run
    end
  end
  if not best then
    return nil
  end
  local run = best.weights and draw(best, wanted) or first
  local id = peek(run, wanted)
  take(run)
  remove(run.key, id)
  return id
end

local SHOWN = {
  'seq', 'job_id', 'queue', 'type', 'payload', 'attempt', 'lease', 'assigned_worker', 'priority',
  'retry_count', 'max_retries', 'created_at', 'timeout', 'expires_at', 'labels', 'version',
}

local function shown(row)
  row[14] = row[14] and exact(tonumber(row[14]) - now)
  row[16] = nil
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

-- claims: {queues (nil: all), those not meant, slots {{worker, lease}, ...}}. Answers what a worker
-- gets, and {id, lease} of each, which is enough to find it again. If there were too many expired
-- jobs, also where it ended: {the number of the claim, workers of its slots that are left}.
local function fill(claims, timeout, seed)
  local rows, kept, due = {}, {}, exact(now + timeout)
  local expired, ended = 0, nil
  math.randomseed(seed)
  for number, claim in ipairs(claims) do
    local without, queues = {}, {}
    for _, name in ipairs(claim[2]) do
      without[name] = true
    end
    for _, name in ipairs(claim[1] or redis.call('SMEMBERS', prefix .. 'queues')) do
      -- With many queues most are empty: ask that first.
      local some = not without[name] and redis.call('EXISTS', READY .. name) == 1
      local queue = some and board(name)
      if queue then
        queues[#queues + 1] = queue
      end
    end
    local slot, slots = 1, claim[3]
    while slot <= #slots do
      local id = next_job(queues, #slots)
      if not id then
        break
      end
      local row = redis.call('HMGET', document(id), unpack(SHOWN))
      -- An expired one stays PENDING, but claimable no more, until the sweeper finds it.
      if not row[14] or tonumber(row[14]) > now then
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
