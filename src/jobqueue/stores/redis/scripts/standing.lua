-- Of these jobs, those that are assigned to a worker and not started, as a claim shows them.
-- asked: {ids (nil: all of the worker's), worker, its incarnation (nil: whichever)}. An incarnation
-- whose place was taken by another one has nothing.
--# include common.lua
--# include routes.lua
--# include jobs.lua
--# include claims.lua
local rows = {}
if asked[3] and redis.call('HGET', prefix .. 'worker:' .. asked[2], 'incarnation') ~= asked[3] then
  return rows
end
for _, id in ipairs(asked[1] or redis.call('HKEYS', prefix .. 'current_jobs:' .. asked[2])) do
  local row = redis.call('HMGET', document(id), 'status', 'assigned_worker')
  if row[1] == 'ASSIGNED' and row[2] == asked[2] then
    rows[#rows + 1] = shown(row_of(id))
  end
end
return rows
