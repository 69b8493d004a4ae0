-- The leases in force, of one worker or of all. asked: {worker or nil}
--# include common.lua
--# include held.lua
if asked[1] then
  return held_by(asked[1])
end
local rows = {}
for _, queue in ipairs(redis.call('SMEMBERS', prefix .. 'queues')) do
  for _, state in ipairs({'ASSIGNED', 'RUNNING'}) do
    for _, id in ipairs(redis.call('ZRANGE', index(state, queue), 0, -1)) do
      rows[#rows + 1] = held_row(id)
    end
  end
end
return rows
