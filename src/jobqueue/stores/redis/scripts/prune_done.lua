-- Remove DONE jobs that ended longer ago. Answers {how many, how many were passed over because they are
-- of other queues}, or nothing when the term is over.
-- asked: {seconds, seconds that it is not longer ago than (nil: any), how many to look at, term, names of queues,
-- whether all but these are meant, how many to pass over}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include outbox.lua
--# include removal.lua
local before = answered()
if before then
  return before
end
if not stands(asked[4]) then
  return false
end
local named = {}
for _, name in ipairs(asked[5]) do
  named[name] = true
end
local all = asked[6] and #asked[5] == 0
local old = redis.call(
  'ZRANGEBYSCORE', prefix .. 'completed', asked[2] and exact(now - asked[2]) or '-inf',
  '(' .. exact(now - asked[1]), 'LIMIT', asked[7], asked[3]
)
local removed, others = 0, 0
for _, id in ipairs(old) do
  if not all and (named[redis.call('HGET', document(id), 'queue')] or false) == asked[6] then
    others = others + 1
  -- Others may lie behind those that are kept for the stream: they go once it has got these.
  elseif passed(id) then
    forget(id, false)
    removed = removed + 1
  end
end
return removed > 0 and answer({removed, others}) or {0, others}
