-- Remove a worker: of an incarnation, if it holds nothing, or (no incarnation) if it is OFFLINE.
-- Answers {1}, {'denied'} if it is another owner's, or nothing. asked: {id, incarnation or nil, owner}
--# include common.lua
--# include lane.lua
--# include owners.lua
local before = answered()
if before then
  return before
end
local id, incarnation = asked[1], asked[2]
local key = prefix .. 'worker:' .. id
local known = redis.call('HMGET', key, 'incarnation', 'status', 'owner')
if not owner_allows(known[3], asked[3]) then
  return {'denied'}
end
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
disown(known[3], id)
tell(CONTROL)
return answer({1})
