-- A heartbeat. asked: {worker, incarnation, leases that are executed, assignment timeout, slots that
-- are overrun (nil: as before)}
-- Answers {status, leases in force}, or nothing if it must register again. May be repeated.
--# include common.lua
--# include held.lua
local id = asked[1]
local key = prefix .. 'worker:' .. id
local known = redis.call('HMGET', key, 'incarnation', 'status', 'overrun')
if known[1] ~= asked[2] or known[2] == 'OFFLINE' then
  return false
end
redis.call('HSET', key, 'last_heartbeat', iso(now))
redis.call('ZADD', prefix .. 'workers', now_text, id)
if asked[5] and asked[5] ~= tonumber(known[3] or 0) then
  redis.call('HSET', key, 'overrun', asked[5])
  redis.call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' 4') -- core.store.Change.CONTROL
end
local begun = {}
for _, lease in ipairs(asked[3]) do
  begun[lease] = true
end
local rows = held_by(id)
for _, row in ipairs(rows) do
  if begun[row[2]] and row[4] == 'ASSIGNED' then
    redis.call('ZADD', prefix .. 'due', exact(now + asked[4]), id_of(row[1]))
  end
end
return {known[2], rows}
