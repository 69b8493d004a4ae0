-- Stop or resume claims; answers {1}, or nothing if there is no such queue. asked: {name, paused}
--# include common.lua
--# include lane.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
local key = prefix .. 'queue:' .. asked[1]
local row = redis.call('HMGET', key, 'name', 'deleted', 'paused')
if not row[1] or row[2] then
  return false
end
local paused = asked[2] and '1' or '0'
if row[3] == paused then
  return {1}
end
redis.call('HSET', key, 'paused', paused)
put_queue('queue_changed', asked[1])
tell(WORK)
tell(CONTROL)
return answer({1})
