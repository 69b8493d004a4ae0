-- The numbers of a queue's unfinished jobs. asked: {queue, limit}
--# include common.lua
local found = {}
for _, state in ipairs({'PENDING', 'ASSIGNED', 'RUNNING', 'FAILED'}) do
  local rows = redis.call('ZRANGE', index(state, asked[1]), 0, asked[2] - 1, 'WITHSCORES')
  for n = 2, #rows, 2 do
    if #found < asked[2] then
      found[#found + 1] = rows[n]
    end
  end
end
return found
