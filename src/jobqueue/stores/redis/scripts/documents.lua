-- The fields of several jobs, as they are at one moment; of one that is gone, none. asked: {ids}
--# include common.lua
local found = {}
for n, id in ipairs(asked[1]) do
  found[n] = redis.call('HGETALL', document(id))
end
return found
