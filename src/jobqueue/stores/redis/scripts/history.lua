-- The newest events of a job, in order. asked: {id, before this version or nil, how many}
--# include common.lua
local key = document(asked[1])
local last = tonumber(redis.call('HGET', key, 'version') or 0)
if asked[2] then last = math.min(last, asked[2] - 1) end
local found = {}
for version = math.max(1, last - asked[3] + 1), last do
  local place = redis.call('HGET', key, 'event:' .. version) .. '-0'
  found[#found + 1] = redis.call('XRANGE', prefix .. 'events', place, place)[1]
end
return found
