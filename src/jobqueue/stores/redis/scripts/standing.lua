-- Of these jobs, those that are assigned to a worker and not started, as a claim shows them.
-- asked: {ids, worker}
--# include common.lua
--# include routes.lua
--# include jobs.lua
--# include claims.lua
local rows = {}
for _, id in ipairs(asked[1]) do
  local row = redis.call('HMGET', document(id), 'status', 'assigned_worker')
  if row[1] == 'ASSIGNED' and row[2] == asked[2] then
    rows[#rows + 1] = shown(redis.call('HMGET', document(id), unpack(SHOWN)))
  end
end
return rows
