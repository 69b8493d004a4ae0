-- Record a worker; answers {'made', the leases of its earlier incarnation}, or {'denied'} if it is
-- another owner's, or {'full'} if its owner has too many.
-- asked: {id, incarnation, fields, how many partitions there are (0: none are allotted), owner, the
-- most that it may have (0: they are not counted)}
--# include common.lua
--# include lane.lua
--# include held.lua
--# include outbox.lua
--# include owners.lua
local before = answered()
if before then
  return before
end
local id, incarnation, partitions, owner, most = asked[1], asked[2], asked[4], asked[5], asked[6]
local key = prefix .. 'worker:' .. id
local known = redis.call('HMGET', key, 'incarnation', 'status', 'partition', 'owner')
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

-- The first partition that nobody else reads, or that the fewest do.
local function allot()
  local readers = {}
  for _, other in ipairs(redis.call('ZRANGE', prefix .. 'workers', 0, -1)) do
    local row = redis.call('HMGET', prefix .. 'worker:' .. other, 'status', 'partition')
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
redis.call(
  'HSET', key, 'worker_id', id, 'incarnation', incarnation, 'status', status,
  'registered_at', at, 'last_heartbeat', at, unpack(asked[3])
)
if partition then
  redis.call('HSET', key, 'partition', partition)
else
  redis.call('HDEL', key, 'partition')
end
disown(known[4], id)
if most > 0 then
  redis.call('SADD', prefix .. 'owned:' .. owner, id)
end
redis.call('ZADD', prefix .. 'workers', now_text, id)
if not back then
  put('worker_registered', 'worker_id', id, 'incarnation', incarnation)
end
tell(CONTROL)
return answer({'made', known[1] and not same and held_by(id) or {}})
