-- Changes that are no events, kept for the event stream until its mark has passed them. Without a
-- stream nothing is kept. An entry's id is the event it comes after, and a number that grows.
local MARK, OUTBOX = prefix .. 'stream', prefix .. 'outbox'

local function place_of(after)
  return after .. '-' .. redis.call('HINCRBY', prefix .. 'counters', 'outbox', 1)
end

local after -- the latest event; false: there is no stream

local function put(kind, ...)
  if after == nil then
    after = redis.call('EXISTS', MARK) == 1
    after = after and (redis.call('HGET', prefix .. 'counters', 'events') or '0')
  end
  if after then
    redis.call('XADD', OUTBOX, place_of(after), 'kind', kind, 'at', now_text, ...)
  end
end

local SETTINGS = {
  'name', 'max_retries', 'ttl', 'timeout', 'capacity', 'retry_profile', 'retry_base', 'retry_max',
  'retry_jitter', 'priority_weights', 'retention', 'dead_letter_retention', 'paused', 'created_at',
}

-- A queue's settings as fields of an entry.
local function settings_of(name)
  local values = redis.call('HMGET', prefix .. 'queue:' .. name, unpack(SETTINGS))
  local said = {}
  for n, field in ipairs(SETTINGS) do
    if values[n] then
      said[#said + 1] = field
      said[#said + 1] = values[n]
    end
  end
  return said
end

local function put_queue(kind, name)
  put(kind, unpack(settings_of(name)))
end
