-- Remove DONE jobs that ended longer ago; answers {how many}, or nothing when the term is over.
-- asked: {seconds, limit, term}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include outbox.lua
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
local removed = 0
for _, id in ipairs(old) do
  -- Others may lie behind those that are kept for the stream: they go once it has got these.
  if passed(id) then
    forget(id, false)
    removed = removed + 1
  end
end
return removed > 0 and answer({removed}) or {0}
