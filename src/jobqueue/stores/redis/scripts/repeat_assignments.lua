-- Say once more which jobs were assigned and not started for longer than a time; each is said once
-- in that time. Answers {how many, how many were looked at}, or nothing when the term is over.
-- asked: {seconds, limit, term}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include routes.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
if not stands(asked[3]) then
  return false
end
if redis.call('EXISTS', MARK) == 0 then
  return {0, 0} -- nobody would hear of it
end
local old = redis.call(
  'ZRANGEBYSCORE', UNSTARTED, '-inf', '(' .. exact(now - asked[1]), 'LIMIT', 0, asked[2]
)
local said = 0
for _, id in ipairs(old) do
  local row = redis.call('HMGET', document(id), 'queue', 'seq', 'attempt', 'assigned_worker')
  local route = route_of(row[4])
  if route then -- else the worker is lost, and so will be its jobs
    put(
      'repeated', 'job_id', id, 'queue', row[1], 'seq', row[2], 'attempt', row[3],
      'worker_id', row[4], 'partition', route[1], 'incarnation', route[2]
    )
    said = said + 1
  end
  redis.call('ZADD', UNSTARTED, now_text, id)
end
return #old > 0 and answer({said, #old}) or {0, 0}
