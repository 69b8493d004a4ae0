-- Take the lead, or renew it: as SET NX with a time to live, but a holder may renew late while
-- nobody else came. Answers {epoch}, or nothing. asked: {holder, ttl}
--# include common.lua
--# include lane.lua
local before = answered()
if before then
  return before
end
local holder, key = asked[1], prefix .. 'leader'
local kept = redis.call('HMGET', key, 'holder', 'epoch', 'until')
if kept[1] and kept[1] ~= holder and tonumber(kept[3]) > now then
  return false
end
local epoch = kept[2]
if kept[1] ~= holder then
  epoch = redis.call('HINCRBY', key, 'epoch', 1)
end
redis.call('HSET', key, 'holder', holder, 'until', exact(now + asked[2]))
return answer({tostring(epoch)})
