-- Remove a terminal job with its history and key; answers {its state, 1}, or nothing.
-- {its state, 0}: it is kept for the event stream. asked: {id, the version that it must have (nil: any)}
--# include common.lua
--# include lane.lua
--# include outbox.lua
--# include removal.lua
local before = answered()
if before then
  return before
end
local id = asked[1]
local row = redis.call('HMGET', document(id), 'status', 'queue', 'idempotency_key', 'version')
local other = asked[2] and row[4] ~= asked[2]
if row[1] ~= 'DONE' and row[1] ~= 'DEAD_LETTERED' or other then
  return row[1] and {row[1], 1}
end
if not passed(id) then
  return {row[1], 0}
end
if row[3] then
  local keys = prefix .. 'idempotency:' .. row[2]
  local kept = redis.call('HGET', keys, row[3])
  if kept and string.match(kept, '^(%S+)') == id then
    redis.call('HDEL', keys, row[3])
    redis.call('ZREM', prefix .. 'key_expiry', row[2] .. '\0' .. row[3])
  end
end
forget(id, true)
return answer({row[1], 1})
