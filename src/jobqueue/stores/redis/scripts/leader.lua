-- Who leads now: {epoch, name, since}, or nothing. A server that does not tell its name leaves the
-- one before it: `named` is the epoch that the name belongs to.
--# include common.lua
--# include term.lua
local kept = redis.call('HMGET', TERM, 'holder', 'epoch', 'name', 'since', 'named')
if not kept[1] or not stands({kept[1], kept[2]}) then
  return false
end
if kept[5] ~= kept[2] then
  return {kept[2], '', '0'}
end
return {kept[2], kept[3], kept[4]}
