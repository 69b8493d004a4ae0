-- Queues with their figures: {fields of the queue, depth by state}. asked: {states, name or nil}
--# include common.lua
local names = asked[2] and {asked[2]} or redis.call('SMEMBERS', prefix .. 'queues')
local found = {}
for _, name in ipairs(names) do
  local fields = redis.call('HGETALL', prefix .. 'queue:' .. name)
  local deleted = #fields == 0
  for n = 1, #fields, 2 do
    deleted = deleted or fields[n] == 'deleted'
  end
  if not deleted then
    local depth = {}
    for n, state in ipairs(asked[1]) do
      depth[n] = redis.call('ZCARD', index(state, name))
    end
    found[#found + 1] = {fields, depth}
  end
end
return found
