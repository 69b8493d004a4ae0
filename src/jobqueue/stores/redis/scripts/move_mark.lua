-- The stream has come that far; answers {1}, or nothing when the term is over.
-- asked: {event, entry, refused, term}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
if not stands(asked[4]) then
  return false
end
if redis.call('EXISTS', MARK) == 0 then
  return {1} -- it was given up
end
redis.call('HSET', MARK, 'event', asked[1], 'entry', asked[2])
redis.call('HINCRBY', MARK, 'refused', asked[3])
redis.call('XTRIM', OUTBOX, 'MINID', asked[1] .. '-' .. string.format('%.0f', asked[2] + 1))
return answer({1})
