-- Give up the lead, if that term is the one that is kept. asked: {term}
--# include common.lua
--# include lane.lua
local before = answered()
if before then
  return before
end
local key, term = prefix .. 'leader', asked[1]
local kept = redis.call('HMGET', key, 'holder', 'epoch')
if kept[1] ~= term[1] or kept[2] ~= term[2] then
  return false
end
redis.call('HDEL', key, 'holder', 'until') -- the epoch stays: it never comes back
tell(CONTROL)
return answer({1})
