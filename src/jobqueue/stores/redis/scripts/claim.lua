-- PENDING -> ASSIGNED for free slots.
--
-- asked: {claims, assignment timeout, seed, term or nil}. Answers the rows, or nil when the term is
-- over.
--# include common.lua
--# include lane.lua
--# include term.lua
--# include routes.lua
--# include jobs.lua
--# include claims.lua
local before = answered()
if before then
  return before.err and before or found_again(before)
end
if asked[4] and not stands(asked[4]) then
  return false
end
local slots = 0
for _, claim in ipairs(asked[1]) do
  slots = slots + #claim[3]
end
expect_events(math.min(slots, 100))
local rows, kept = fill(asked[1], asked[2], asked[3])
if #kept > 0 then
  answer(kept)
end
return rows
