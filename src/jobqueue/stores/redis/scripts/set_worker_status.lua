-- Drain, take back, stop or retire a worker; answers {1}, or nothing if it is unknown, or if a stop
-- would be taken back.
-- asked: {id, status, incarnation (nil: whichever)}
--# include common.lua
--# include lane.lua
--# include owners.lua
local before = answered()
if before then
  return before
end
local key = prefix .. 'worker:' .. asked[1]
local known = redis.call('HGET', key, 'incarnation')
if not known or (asked[3] and asked[3] ~= known) then
  return false
end
local ends = asked[2] == 'STOPPING' or asked[2] == 'OFFLINE'
local status = redis.call('HGET', key, 'status')
if not ends and status ~= 'ONLINE' and status ~= 'DRAINING' then
  return false
end
redis.call('HSET', key, 'status', asked[2])
if asked[2] == 'OFFLINE' then
  redis.call('HDEL', key, 'partition')
  note_offline(redis.call('HGET', key, 'owner'), asked[1])
end
tell(CONTROL)
return answer({1})
