--# owners
-- The owner of a worker is the caller that registered it (core.job.owner_allows). "owned:" has the
-- workers of each owner, and "offline:" the owner's workers that are OFFLINE.
local function owner_allows(owner, asking)
  return asking == '' or asking == '\tin process' or not owner or owner == '' or owner == asking
end

local function disown(owner, id)
  if owner and owner ~= '' then
    call('SREM', prefix .. 'owned:' .. owner, id)
    call('SREM', prefix .. 'offline:' .. owner, id)
  end
end

local function note_offline(owner, id)
  if owner and owner ~= '' and call('SISMEMBER', prefix .. 'owned:' .. owner, id) == 1 then
    call('SADD', prefix .. 'offline:' .. owner, id)
  end
end

-- Return true if the owner may have one more worker. OFFLINE workers without leases are removed to
-- make room. A call reads only some of them, so that an owner with many workers costs little.
local function has_room(owner, id, most)
  local key = prefix .. 'owned:' .. owner
  if call('SISMEMBER', key, id) == 1 or call('SCARD', key) < most then
    return true
  end
  local room = false
  for _, other in ipairs(call('SRANDMEMBER', prefix .. 'offline:' .. owner, 20)) do
    local holds = call('HLEN', prefix .. 'current_jobs:' .. other) > 0
    if call('HGET', prefix .. 'worker:' .. other, 'status') == 'OFFLINE' and not holds then
      call('DEL', prefix .. 'worker:' .. other)
      call('ZREM', prefix .. 'workers', other)
      disown(owner, other)
      room = true
    end
  end
  return room
end

--# held
-- Return a lease in force: seq, lease, worker, state, cancel flag; for a lease that has ended,
-- nothing.
local function held_row(id)
  local row = call(
    'HMGET', document(id), 'seq', 'lease', 'assigned_worker', 'status', 'cancel_requested'
  )
  return row[2] and row[2] ~= '' and row or nil
end

-- Return the leases of one worker.
local function held_by(worker)
  local rows = {}
  for _, id in ipairs(call('HKEYS', prefix .. 'current_jobs:' .. worker)) do
    rows[#rows + 1] = held_row(id)
  end
  return rows
end

--# register_worker: write, held, outbox, owners
-- Record a worker. Returns {'made', the leases of its earlier incarnation}, or {'denied'} if the
-- worker belongs to another owner, or {'full'} if its owner has too many workers.
-- asked: {id, incarnation, fields, number of partitions (0: workers get none), owner, the most
-- workers of the owner (0: no limit)}
local id, incarnation, partitions, owner, most = asked[1], asked[2], asked[4], asked[5], asked[6]
local key = prefix .. 'worker:' .. id
local known = call('HMGET', key, 'incarnation', 'status', 'partition', 'owner')
local allowed = owner_allows(known[4], owner)
if not allowed and known[2] ~= 'OFFLINE' then
  return {'denied'}
end
if most > 0 and not has_room(owner, id, most) then
  return {'full'}
end
local same = allowed and known[1] == incarnation
local back = same and known[2] ~= 'OFFLINE'
local status = back and known[2] or 'ONLINE' -- a reconnect does not undo an operator's drain
local at = iso(now)

-- Return the first partition that the fewest other workers read.
local function allot()
  local readers = {}
  for _, other in ipairs(call('ZRANGE', prefix .. 'workers', 0, -1)) do
    local row = call('HMGET', prefix .. 'worker:' .. other, 'status', 'partition')
    if other ~= id and row[2] and row[1] ~= 'OFFLINE' then
      readers[row[2]] = (readers[row[2]] or 0) + 1
    end
  end
  local best, fewest = nil, math.huge
  for partition = 0, partitions - 1 do
    local count = readers[tostring(partition)] or 0
    if count < fewest then
      best, fewest = partition, count
    end
  end
  return best
end

local partition = back and tonumber(known[3])
if not partition or partition >= partitions then
  partition = partitions > 0 and allot()
end
call(
  'HSET', key, 'worker_id', id, 'incarnation', incarnation, 'status', status,
  'registered_at', at, 'last_heartbeat', at, unpack(asked[3])
)
if partition then
  call('HSET', key, 'partition', partition)
else
  call('HDEL', key, 'partition')
end
disown(known[4], id)
if most > 0 then
  call('SADD', prefix .. 'owned:' .. owner, id)
end
call('ZADD', prefix .. 'workers', now_text, id)
if not back then
  put('worker_registered', 'worker_id', id, 'incarnation', incarnation)
end
tell(CONTROL)
return answer({'made', known[1] and not same and held_by(id) or {}})

--# pulse: held, owners
-- A heartbeat. asked: {worker, incarnation, leases that are executed, assignment timeout, slots
-- that are withheld (nil: as before), progress {value ('': not known), text} by lease, owner, slots
-- that are overrun (nil: as before)} Returns {status, leases in force}, {'denied'} if the worker
-- belongs to another owner, or nothing if the worker must register again. It is safe to repeat.
local id = asked[1]
local key = prefix .. 'worker:' .. id
local known = call('HMGET', key, 'incarnation', 'status', 'withheld', 'owner')
if not owner_allows(known[4], asked[7]) then
  return {'denied'}
end
if known[1] ~= asked[2] or known[2] == 'OFFLINE' then
  return false
end
call('HSET', key, 'last_heartbeat', iso(now))
call('ZADD', prefix .. 'workers', now_text, id)
if asked[5] and asked[5] ~= tonumber(known[3] or 0) then
  call('HSET', key, 'withheld', asked[5])
  call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' 4') -- core.store.Change.CONTROL
end
if asked[8] then
  call('HSET', key, 'overrun', asked[8])
end
-- Progress is valid while its job is RUNNING under its lease. It is not removed when the attempt
-- ends. "progress" has the jobs with progress, by the time of their last check; later calls remove
-- it.
local told = 0
local PROGRESS = prefix .. 'progress'

local function keep_progress(job, lease, value, text)
  told = told + 1
  call('ZADD', PROGRESS, now_text, job)
  call(
    'HSET', document(job), 'progress', value, 'progress_text', text, 'progress_at', now_text,
    'progress_lease', lease
  )
end

local function forget_progress(count)
  local old = call('ZRANGEBYSCORE', PROGRESS, '-inf', exact(now - 60), 'LIMIT', 0, count)
  for _, job in ipairs(old) do
    local row = call('HMGET', document(job), 'lease', 'progress_lease')
    if row[1] and row[1] == row[2] then
      call('ZADD', PROGRESS, now_text, job)
    else
      call('HDEL', document(job), 'progress', 'progress_text', 'progress_at', 'progress_lease')
      call('ZREM', PROGRESS, job)
    end
  end
end

local begun = {}
for _, lease in ipairs(asked[3]) do
  begun[lease] = true
end
local rows = held_by(id)
for _, row in ipairs(rows) do
  if begun[row[2]] and row[4] == 'ASSIGNED' then
    call('ZADD', prefix .. 'due', exact(now + asked[4]), id_of(row[1]))
  end
  local said = asked[6][row[2]]
  if said then
    keep_progress(id_of(row[1]), row[2], said[1], said[2])
  end
end
if told > 0 then
  forget_progress(told + 10)
end
return {known[2], rows}

--# set_worker_status: write, owners
-- Drain, undrain, stop or retire a worker. Returns {1}, or nothing if the worker is unknown, or if
-- it is STOPPING and would get an earlier status.
-- asked: {id, status, incarnation (nil: any)}
local key = prefix .. 'worker:' .. asked[1]
local known = call('HGET', key, 'incarnation')
if not known or (asked[3] and asked[3] ~= known) then
  return false
end
local ends = asked[2] == 'STOPPING' or asked[2] == 'OFFLINE'
local status = call('HGET', key, 'status')
if not ends and status ~= 'ONLINE' and status ~= 'DRAINING' then
  return false
end
call('HSET', key, 'status', asked[2])
if asked[2] == 'OFFLINE' then
  call('HDEL', key, 'partition')
  note_offline(call('HGET', key, 'owner'), asked[1])
end
tell(CONTROL)
return answer({1})

--# set_breakers: write
-- Record the open breakers of a worker, as JSON. Returns {1}.
-- asked: {id, incarnation, breakers ('': none)}
local key = prefix .. 'worker:' .. asked[1]
if call('HGET', key, 'incarnation') == asked[2] then
  call('HSET', key, 'breakers', asked[3])
  tell(CONTROL)
end
return answer({1})

--# retire_silent: led_write, outbox, owners
-- Set workers OFFLINE that sent no heartbeat for some seconds. Returns {ids}, or nothing if the
-- term is over.
-- asked: {term, silent for}
local silent = call('ZRANGEBYSCORE', prefix .. 'workers', '-inf', '(' .. exact(now - asked[2]))
local retired = {}
for _, id in ipairs(silent) do
  local key = prefix .. 'worker:' .. id
  local row = call('HMGET', key, 'status', 'incarnation', 'owner')
  if row[1] ~= 'OFFLINE' then
    call('HSET', key, 'status', 'OFFLINE')
    call('HDEL', key, 'partition')
    note_offline(row[3], id)
    put('worker_dead', 'worker_id', id, 'incarnation', row[2])
    retired[#retired + 1] = id
  end
end
if #retired == 0 then
  return {retired}
end
tell(CONTROL)
return answer({retired})

--# remove_worker: write, owners
-- Remove a worker. With an incarnation: if the worker has this incarnation and no leases. Without:
-- if it is OFFLINE. Returns {1}, {'denied'} if the worker belongs to another owner, or nothing.
-- asked: {id, incarnation or nil, owner}
local id, incarnation = asked[1], asked[2]
local key = prefix .. 'worker:' .. id
local known = call('HMGET', key, 'incarnation', 'status', 'owner')
if not owner_allows(known[3], asked[3]) then
  return {'denied'}
end
if incarnation then
  local holds = call('HLEN', prefix .. 'current_jobs:' .. id) > 0
  if known[1] ~= incarnation or holds then
    return false
  end
elseif known[2] ~= 'OFFLINE' then
  return false
end
call('DEL', key)
call('ZREM', prefix .. 'workers', id)
disown(known[3], id)
tell(CONTROL)
return answer({1})

--# held_leases: held
-- Return the leases in force of one worker or of all workers. asked: {worker or nil}
if asked[1] then
  return held_by(asked[1])
end
local rows = {}
for _, queue in ipairs(call('SMEMBERS', prefix .. 'queues')) do
  for _, state in ipairs({'ASSIGNED', 'RUNNING'}) do
    for _, id in ipairs(call('ZRANGE', index(state, queue), 0, -1)) do
      rows[#rows + 1] = held_row(id)
    end
  end
end
return rows

--# worker_infos
-- Return the fields of workers; an unknown worker has none. asked: {ids}
local found = {}
for n, id in ipairs(asked[1]) do
  found[n] = call('HGETALL', prefix .. 'worker:' .. id)
end
return found

--# workers
-- Return every worker: {fields, time of the last heartbeat, number of its leases}.
-- asked: {true: with the names of its queues and types}
local SHORT = {
  'worker_id', 'incarnation', 'hostname', 'pid', 'concurrency', 'version', 'fallback', 'link',
  'owner', 'status', 'registered_at', 'overrun', 'breakers', 'partition', 'withheld',
}

local function fields_of(id)
  local key = prefix .. 'worker:' .. id
  if asked[1] then
    return call('HGETALL', key)
  end
  local row, short = {}, call('HMGET', key, unpack(SHORT))
  for n, name in ipairs(SHORT) do
    if short[n] then
      row[#row + 1] = name
      row[#row + 1] = short[n]
    end
  end
  return row
end

local found = {}
local known = call('ZRANGE', prefix .. 'workers', 0, -1, 'WITHSCORES')
for n = 1, #known, 2 do
  found[#found + 1] = {
    fields_of(known[n]),
    known[n + 1],
    call('HLEN', prefix .. 'current_jobs:' .. known[n]),
  }
end
return found
