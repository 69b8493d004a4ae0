-- Remove a queue without unfinished jobs; answers {how many there are}, or nothing if it is not
-- known. Its records stay, and so do its figures. asked: {name}
--# include common.lua
--# include lane.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
local name = asked[1]
local key = prefix .. 'queue:' .. name
local row = redis.call('HMGET', key, 'name', 'deleted')
if not row[1] or row[2] then
  return false
end
local unfinished = 0
for _, state in ipairs({'PENDING', 'ASSIGNED', 'RUNNING', 'FAILED'}) do
  unfinished = unfinished + redis.call('ZCARD', index(state, name))
end
if unfinished > 0 then
  return {unfinished}
end
redis.call('HSET', key, 'deleted', '1')
put_queue('queue_deleted', name)
redis.call('SREM', prefix .. 'queues', name)
tell(WORK)
tell(CONTROL)
return answer({0})
