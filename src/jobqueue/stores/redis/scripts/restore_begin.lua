-- Begin to restore an empty store. Answers {'begun'}, or {what is there}. asked: {token, the queue
-- that every server makes}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include outbox.lua
--# include restoring.lua
local before = answered()
if before then
  return before
end
if redis.call('EXISTS', RESTORING) == 1 then
  return {'restoring'}
end
local ends = tonumber(redis.call('HGET', TERM, 'until') or 0)
if redis.call('EXISTS', LEADER) == 1 and ends > now then
  return {'led'}
end
if redis.call('EXISTS', prefix .. 'jobs') == 1 then
  return {'jobs'}
end
if redis.call('EXISTS', prefix .. 'key_expiry') == 1 then
  return {'idempotency keys'}
end
local first = prefix .. 'queue:' .. asked[2]
for _, name in ipairs(redis.call('SMEMBERS', prefix .. 'every_queue')) do
  local row = redis.call('HMGET', first, 'deleted', 'paused', 'succeeded', 'failed')
  if name ~= asked[2] or row[1] or row[2] == '1' or row[3] or row[4] then
    return {'queues'}
  end
end
redis.call('DEL', first, prefix .. 'every_queue', prefix .. 'queues')
redis.call('DEL', MARK, OUTBOX)
redis.call('HSET', RESTORING, 'token', asked[1], 'since', iso(now))
return answer({'begun'})
