-- Give a queue other settings; answers {its settings}, or nothing if there is no such queue.
-- asked: {name, fields to set, fields to remove}
--# include common.lua
--# include lane.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
local key = prefix .. 'queue:' .. asked[1]
local row = redis.call('HMGET', key, 'name', 'deleted')
if not row[1] or row[2] then
  return false
end
local old = table.concat(settings_of(asked[1]), '\n')
if #asked[2] > 0 then
  redis.call('HSET', key, unpack(asked[2]))
end
if #asked[3] > 0 then
  redis.call('HDEL', key, unpack(asked[3]))
end
local new = settings_of(asked[1])
if table.concat(new, '\n') ~= old then
  put_queue('queue_changed', asked[1])
  tell(WORK)
  tell(CONTROL)
end
return answer({new})
