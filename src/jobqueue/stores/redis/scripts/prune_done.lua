-- Remove DONE jobs that ended longer ago; answers {how many}, or nothing when the term is over.
-- asked: {seconds, limit, term}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include removal.lua
local before = answered()
if before then
  return before
end
if not stands(asked[3]) then
  return false
end
local old = redis.call(
  'ZRANGEBYSCORE', prefix .. 'completed', '-inf', '(' .. exact(now - asked[1]), 'LIMIT', 0, asked[2]
)
for _, id in ipairs(old) do
  forget(id)
end
return #old > 0 and answer({#old}) or {0}
