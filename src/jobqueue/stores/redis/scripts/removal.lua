-- Needs outbox.lua.
local mark = redis.call('HGET', MARK, 'event')

-- Whether the stream, if there is one, has got all events of a job.
local function passed(id)
  if not mark then
    return true
  end
  local version = redis.call('HGET', document(id), 'version')
  return tonumber(redis.call('HGET', document(id), 'event:' .. version)) <= tonumber(mark)
end

-- A job goes with its events. Its key stays to the end of its time, unless the caller frees it.
local function forget(id, key_freed)
  local key = document(id)
  local row = redis.call('HMGET', key, 'queue', 'status', 'version')
  local events = {}
  for version = 1, tonumber(row[3]) do
    events[version] = 'event:' .. version
  end
  for from = 1, #events, 1000 do
    local places = redis.call('HMGET', key, unpack(events, from, math.min(#events, from + 999)))
    for n, place in ipairs(places) do
      places[n] = place .. '-0'
    end
    redis.call('XDEL', prefix .. 'events', unpack(places))
  end
  redis.call('DEL', key)
  redis.call('ZREM', index(row[2], row[1]), id)
  redis.call('ZREM', prefix .. 'jobs', id)
  redis.call('ZREM', prefix .. 'completed', id)
  -- Last: a full Redis refuses to begin with what takes room, and this makes some.
  put(
    'deleted', 'job_id', id, 'queue', row[1], 'version', row[3], 'key_freed', key_freed and 1 or 0
  )
end
