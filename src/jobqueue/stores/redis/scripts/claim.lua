-- PENDING -> ASSIGNED for free slots.
--
-- asked: {claims, assignment timeout, seed, term or nil, whether workers are told}. Answers {rows, where it ended before it
-- had looked at all}, or nil when the term is over.
--
-- Under a term the workers are not connected to whoever claims, which hears of their end later: what
-- is claimed for one that takes nothing any more would be lost with it.
--# include common.lua
--# include lane.lua
--# include term.lua
--# include routes.lua
--# include jobs.lua
--# include claims.lua
local before = answered()
if before then
  return before.err and before or {found_again(before[1]), before[2]}
end
if asked[4] and not stands(asked[4]) then
  return false
end
local function there(slots)
  local found = {}
  for _, slot in ipairs(slots) do
    local route = route_of(slot[1])
    if route and route[3] == 'ONLINE' then
      found[#found + 1] = slot
    end
  end
  return found
end

local slots = 0
for _, claim in ipairs(asked[1]) do
  if asked[4] then
    claim[3] = there(claim[3])
  end
  slots = slots + #claim[3]
end
expect_events(math.min(slots, 100))
local rows, kept, ended = fill(asked[1], asked[2], asked[3])
give_back()
if #kept > 0 then
  if asked[5] then
    tell(ASSIGNED)
  end
  answer({kept, ended or false})
end
return {rows, ended or false}
