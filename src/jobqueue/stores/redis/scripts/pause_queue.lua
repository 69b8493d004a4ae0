-- Stop or resume claims; answers {1}, or nothing if there is no such queue. asked: {name, paused}
--# include common.lua
--# include lane.lua
local before = answered()
if before then
  return before
end
local key = prefix .. 'queue:' .. asked[1]
local row = redis.call('HMGET', key, 'name', 'deleted')
if not row[1] or row[2] then
  return false
end
redis.call('HSET', key, 'paused', asked[2] and '1' or '0')
tell(WORK)
tell(CONTROL)
return answer({1})
