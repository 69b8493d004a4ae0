-- Flag a RUNNING job; answers its lease, or nothing. asked: {seq}
--# include common.lua
--# include lane.lua
--# include held.lua
--# include outbox.lua
local before = answered()
if before then
  return before
end
local id = id_of(asked[1])
local row = id and held_row(id)
if not row or row[4] ~= 'RUNNING' then
  return false
end
if row[5] then
  return row
end
redis.call('HSET', document(id), 'cancel_requested', '1')
local job = redis.call('HMGET', document(id), 'queue', 'version')
put('cancel', 'job_id', id, 'queue', job[1], 'version', job[2])
tell(CONTROL)
return answer(held_row(id))
