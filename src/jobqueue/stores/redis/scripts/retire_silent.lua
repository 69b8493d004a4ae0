-- Mark OFFLINE whoever was silent for longer; answers {ids}, or nothing when the term is over.
-- asked: {silent for, term}
--# include common.lua
--# include lane.lua
--# include term.lua
--# include outbox.lua
--# include owners.lua
local before = answered()
if before then
  return before
end
if not stands(asked[2]) then
  return false
end
local silent = redis.call(
  'ZRANGEBYSCORE', prefix .. 'workers', '-inf', '(' .. exact(now - asked[1])
)
local retired = {}
for _, id in ipairs(silent) do
  local key = prefix .. 'worker:' .. id
  local row = redis.call('HMGET', key, 'status', 'incarnation', 'owner')
  if row[1] ~= 'OFFLINE' then
    redis.call('HSET', key, 'status', 'OFFLINE')
    redis.call('HDEL', key, 'partition')
    note_offline(row[3], id)
    put('worker_dead', 'worker_id', id, 'incarnation', row[2])
    retired[#retired + 1] = id
  end
end
if #retired == 0 then
  return {retired}
end
tell(CONTROL)
return answer({retired})
