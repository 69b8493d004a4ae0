-- Types that have something to claim: {queue, type, how many, up to a limit}.
-- asked: {the limit, name or nil}
--# include common.lua
--# include routes.lua
--# include jobs.lua
local names = asked[2] and {asked[2]} or redis.call('SMEMBERS', prefix .. 'queues')
local found = {}
for _, name in ipairs(names) do
  for _, type in ipairs(redis.call('ZRANGE', ready_types(name), 0, -1)) do
    local count = redis.call('ZCARD', ready_set(name, type))
    found[#found + 1] = {name, type, math.min(count, asked[1])}
  end
end
return found
