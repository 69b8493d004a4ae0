-- The events of a job, in order. asked: {id}
--# include common.lua
local key = document(asked[1])
local found = {}
for version = 1, tonumber(redis.call('HGET', key, 'version') or 0) do
  local place = redis.call('HGET', key, 'event:' .. version) .. '-0'
  found[version] = redis.call('XRANGE', prefix .. 'events', place, place)[1]
end
return found
