-- Remove a worker: of an incarnation, if it holds nothing, or (no incarnation) if it is OFFLINE.
-- Answers {1}, or nothing. asked: {id, incarnation or nil}
--# include common.lua
--# include lane.lua
local before = answered()
if before then
  return before
end
local id, incarnation = asked[1], asked[2]
local key = prefix .. 'worker:' .. id
local known = redis.call('HMGET', key, 'incarnation', 'status')
if incarnation then
  local holds = redis.call('HLEN', prefix .. 'current_jobs:' .. id) > 0
  if known[1] ~= incarnation or holds then
    return false
  end
elseif known[2] ~= 'OFFLINE' then
  return false
end
redis.call('DEL', key)
redis.call('ZREM', prefix .. 'workers', id)
tell(CONTROL)
return answer({1})
