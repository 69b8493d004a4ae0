-- Take the lead, or renew it: SET NX PX, but a holder may renew late while nobody else came.
-- Answers {epoch}, or nothing. asked: {holder, ttl, name}
--# include common.lua
--# include lane.lua
--# include term.lua
local before = answered()
if before then
  return before
end
local holder, ttl = asked[1], asked[2]
local life = math.max(1, math.floor(ttl * 1000 + 0.5))
local kept = redis.call('HMGET', TERM, 'holder', 'epoch', 'until')
local epoch = kept[2]
if kept[1] == holder then
  redis.call('SET', LEADER, holder .. ':' .. epoch, 'PX', life)
else
  if tonumber(kept[3] or 0) <= now then
    redis.call('DEL', LEADER) -- over by a test's clock
  end
  epoch = string.format('%.0f', (epoch or 0) + 1)
  if not redis.call('SET', LEADER, holder .. ':' .. epoch, 'NX', 'PX', life) then
    return false
  end
end
if injected then
  redis.call('PERSIST', LEADER) -- Redis's clock has no say
end
if redis.call('HGET', TERM, 'named') ~= epoch then
  redis.call('HSET', TERM, 'name', asked[3], 'since', now_text, 'named', epoch)
end
redis.call('HSET', TERM, 'holder', holder, 'epoch', epoch, 'until', exact(now + ttl))
return answer({epoch})
