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

local NO_SETTINGS = {deleted = true, succeeded = true, failed = true, run_seconds = true}

-- A queue's settings as fields of an entry, by name: the order in a hash says nothing.
local function settings_of(name)
  local values = redis.call('HGETALL', prefix .. 'queue:' .. name)
  local names, found = {}, {}
  for n = 1, #values, 2 do
    if not NO_SETTINGS[values[n]] then
      names[#names + 1] = values[n]
      found[values[n]] = values[n + 1]
    end
  end
  table.sort(names)
  local said = {}
  for n, field in ipairs(names) do
    said[2 * n - 1], said[2 * n] = field, found[field]
  end
  return said
end

local function put_queue(kind, name)
  put(kind, unpack(settings_of(name)))
end
