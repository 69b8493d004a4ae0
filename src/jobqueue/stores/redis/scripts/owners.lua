-- Who registered a worker: core.job.owner_allows. "owned:" has the workers of each caller, and
-- "offline:" those of them that are OFFLINE.
local function owner_allows(owner, asking)
  return asking == '' or asking == '\tin process' or not owner or owner == '' or owner == asking
end

local function disown(owner, id)
  if owner and owner ~= '' then
    redis.call('SREM', prefix .. 'owned:' .. owner, id)
    redis.call('SREM', prefix .. 'offline:' .. owner, id)
  end
end

local function note_offline(owner, id)
  if owner and owner ~= '' and redis.call('SISMEMBER', prefix .. 'owned:' .. owner, id) == 1 then
    redis.call('SADD', prefix .. 'offline:' .. owner, id)
  end
end

-- Whether the owner may have one more. Those that are OFFLINE and hold nothing make room. Only some
-- are looked at, so that a caller who has many and asks again and again costs little.
local function has_room(owner, id, most)
  local key = prefix .. 'owned:' .. owner
  if redis.call('SISMEMBER', key, id) == 1 or redis.call('SCARD', key) < most then
    return true
  end
  local room = false
  for _, other in ipairs(redis.call('SRANDMEMBER', prefix .. 'offline:' .. owner, 20)) do
    local holds = redis.call('HLEN', prefix .. 'current_jobs:' .. other) > 0
    if redis.call('HGET', prefix .. 'worker:' .. other, 'status') == 'OFFLINE' and not holds then
      redis.call('DEL', prefix .. 'worker:' .. other)
      redis.call('ZREM', prefix .. 'workers', other)
      disown(owner, other)
      room = true
    end
  end
  return room
end
