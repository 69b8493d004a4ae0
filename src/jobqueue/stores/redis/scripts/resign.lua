-- Give up the lead, if that term is the one that is kept. asked: {term}
--# include common.lua
--# include lane.lua
--# include term.lua
local before = answered()
if before then
  return before
end
local term = asked[1]
local kept = redis.call('HMGET', TERM, 'holder', 'epoch')
if kept[1] ~= term[1] or kept[2] ~= term[2] then
  return false
end
redis.call('DEL', LEADER)
redis.call('HDEL', TERM, 'holder', 'until') -- the epoch stays: it never comes back
tell(CONTROL)
return answer({1})
