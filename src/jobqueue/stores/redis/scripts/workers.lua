-- Every worker: {fields, when it was last heard of, jobs it holds}.
--# include common.lua
local found = {}
local known = redis.call('ZRANGE', prefix .. 'workers', 0, -1, 'WITHSCORES')
for n = 1, #known, 2 do
  found[#found + 1] = {
    redis.call('HGETALL', prefix .. 'worker:' .. known[n]),
    known[n + 1],
    redis.call('HLEN', prefix .. 'current_jobs:' .. known[n]),
  }
end
return found
