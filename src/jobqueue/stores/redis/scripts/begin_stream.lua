-- The mark; the first time it is made, at the beginning. Every queue counts as just created then,
-- and every worker that is there as just registered.
-- Answers {event, entry, id, generation}, or nothing when the term is over.
-- asked: {term, an id, for a store that has none}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include outbox.lua
--# include instance.lua
local before = answered()
if before then
  return before
end
if not stands(asked[1]) then
  return false
end
local store = instance(asked[2]) -- before there is a mark
if redis.call('EXISTS', MARK) == 1 then
  local mark = redis.call('HMGET', MARK, 'event', 'entry')
  return {mark[1], mark[2], store[1], store[2]}
end
redis.call('HSET', MARK, 'event', '0', 'entry', '0', 'refused', '0')
local queues = redis.call('SMEMBERS', prefix .. 'queues')
for _, name in ipairs(queues) do
  -- Before every event: a queue comes before its jobs.
  redis.call(
    'XADD', OUTBOX, place_of('0'), 'kind', 'queue_created', 'at', now_text,
    unpack(settings_of(name))
  )
end
for _, name in ipairs(queues) do
  for _, id in ipairs(redis.call('ZRANGE', index('RUNNING', name), 0, -1)) do
    local row = redis.call('HMGET', document(id), 'cancel_requested', 'version')
    if row[1] then
      put('cancel', 'job_id', id, 'queue', name, 'version', row[2])
    end
  end
end
for _, id in ipairs(redis.call('ZRANGE', prefix .. 'workers', 0, -1)) do
  local row = redis.call('HMGET', prefix .. 'worker:' .. id, 'status', 'incarnation')
  if row[1] ~= 'OFFLINE' then
    put('worker_registered', 'worker_id', id, 'incarnation', row[2])
  end
end
return answer({'0', '0', store[1], store[2]})
