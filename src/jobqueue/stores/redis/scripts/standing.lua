-- Of these jobs, those that are assigned to a worker and not started, as a claim shows them.
-- asked: {ids (nil: all of the worker's), worker}
--# include common.lua
--# include routes.lua
--# include jobs.lua
--# include claims.lua
local rows = {}
for _, id in ipairs(asked[1] or redis.call('HKEYS', prefix .. 'current_jobs:' .. asked[2])) do
  local row = redis.call('HMGET', document(id), 'status', 'assigned_worker')
  if row[1] == 'ASSIGNED' and row[2] == asked[2] then
    rows[#rows + 1] = shown(redis.call('HMGET', document(id), unpack(SHOWN)))
  end
end
return rows
