-- Who registered a worker: core.job.owner_allows. "owned:" has the workers of each caller.
local function owner_allows(owner, asking)
  return asking == '' or asking == '\tin process' or not owner or owner == '' or owner == asking
end

local function disown(owner, id)
  if owner and owner ~= '' then
    redis.call('SREM', prefix .. 'owned:' .. owner, id)
  end
end

-- Whether the owner may have one more. Those that are OFFLINE and hold nothing make room.
local function has_room(owner, id, most)
  local key = prefix .. 'owned:' .. owner
  if redis.call('SISMEMBER', key, id) == 1 or redis.call('SCARD', key) < most then
    return true
  end
  local room = false
  for _, other in ipairs(redis.call('SMEMBERS', key)) do
    local status = redis.call('HGET', prefix .. 'worker:' .. other, 'status')
    local holds = redis.call('HLEN', prefix .. 'current_jobs:' .. other) > 0
    if not status or (status == 'OFFLINE' and not holds) then
      redis.call('DEL', prefix .. 'worker:' .. other)
      redis.call('ZREM', prefix .. 'workers', other)
      redis.call('SREM', key, other)
      room = true
    end
  end
  return room
end
