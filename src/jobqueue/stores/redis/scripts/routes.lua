-- Where a worker reads its assignments: {partition, incarnation, status}, or nothing if it was
-- allotted none.
local routes = {}

local function route_of(worker)
  local known = routes[worker]
  if known == nil then
    local row = redis.call(
      'HMGET', prefix .. 'worker:' .. worker, 'partition', 'incarnation', 'status'
    )
    known = row[1] and row
    routes[worker] = known
  end
  return known
end

-- Assignments that went out by a route and were not started, by the time they were last sent.
local UNSTARTED = prefix .. 'unstarted'
