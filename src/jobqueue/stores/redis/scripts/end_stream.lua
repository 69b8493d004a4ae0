-- Nothing is kept for a stream any more; answers {1}, or nothing when the term is over.
-- asked: {term}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
if not stands(asked[1]) then
  return false
end
redis.call('DEL', MARK, OUTBOX)
return answer({1})
