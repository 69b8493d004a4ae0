-- The last step of a replay: queues, and the numbers that new jobs and changes go on from. Answers
-- {'done'}, or nothing if this replay is not the one under way.
--
-- asked: {token, queues {name, fields, whether it was deleted}, the last number of a job, of a
-- queue's change, the latest time of creation, whether the stream has all this, {id, generation and
-- what it continues} of the store}
--# include common.lua
--# include lane.lua
--# include outbox.lua
--# include instance.lua
--# include restoring.lua
local before = answered()
if before then
  return before
end
if not ours(asked[1]) then
  return false
end
for _, queue in ipairs(asked[2]) do
  redis.call('HSET', prefix .. 'queue:' .. queue[1], unpack(queue[2]))
  redis.call('SADD', prefix .. 'every_queue', queue[1])
  if not queue[3] then
    redis.call('SADD', prefix .. 'queues', queue[1])
  end
end
local counters = prefix .. 'counters'
local function raise(counter, to)
  if tonumber(redis.call('HGET', counters, counter) or 0) < to then
    redis.call('HSET', counters, counter, string.format('%.17g', to))
  end
end
raise('seq', asked[3])
raise('outbox', asked[4])
raise('latest', asked[5])
if asked[6] then
  redis.call(
    'HSET', MARK, 'event', redis.call('HGET', counters, 'events') or '0',
    'entry', redis.call('HGET', counters, 'outbox') or '0', 'refused', '0'
  )
end
local store = asked[7]
redis.call('HSET', INSTANCE, 'id', store[1], 'generation', store[2], 'continues', store[3])
redis.call('DEL', RESTORING)
tell(WORK)
tell(CONTROL)
return answer({'done'})
