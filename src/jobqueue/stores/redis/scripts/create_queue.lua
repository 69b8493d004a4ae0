-- Create a queue; answers {the time}, or nothing if the name is taken. One that was deleted comes
-- back with its figures. asked: {name, fields to set, fields to remove}
--# include common.lua
--# include lane.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
local key = prefix .. 'queue:' .. asked[1]
local row = redis.call('HMGET', key, 'name', 'deleted')
if row[1] and not row[2] then
  return false
end
redis.call('HSET', key, 'created_at', now_text, unpack(asked[2]))
redis.call('HDEL', key, 'deleted', unpack(asked[3]))
put_queue('queue_created', asked[1])
redis.call('SADD', prefix .. 'queues', asked[1])
redis.call('SADD', prefix .. 'every_queue', asked[1]) -- deleted ones too: their records stay
tell(WORK)
tell(CONTROL)
return answer({now_text})
