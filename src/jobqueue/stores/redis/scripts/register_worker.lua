-- Record a worker; answers the leases of its earlier incarnation. asked: {id, incarnation, fields}
--# include common.lua
--# include lane.lua
--# include held.lua
local before = answered()
if before then
  return before
end
local id, incarnation = asked[1], asked[2]
local key = prefix .. 'worker:' .. id
local known = redis.call('HMGET', key, 'incarnation', 'status')
local status = 'ONLINE'
if known[1] == incarnation and known[2] ~= 'OFFLINE' then
  status = known[2] -- a reconnect does not undo an operator's drain
end
local at = iso(now)
redis.call(
  'HSET', key, 'worker_id', id, 'incarnation', incarnation, 'status', status,
  'registered_at', at, 'last_heartbeat', at, unpack(asked[3])
)
redis.call('ZADD', prefix .. 'workers', now_text, id)
tell(CONTROL)
return answer(known[1] and known[1] ~= incarnation and held_by(id) or {})
