-- Events and entries of the outbox as they were committed, from a position on, each event with the
-- part of its job that never changes again. A job stays as long as its events: none is without.
--
-- asked: {event, entry, limit, bytes, the store that the position is of: {id, generation} or nothing}. Answers {place, fields, parts or nil}. Of the first event the
-- parts are those of CREATED below and the end of the key's life, of a success those of DONE, of a dead
-- letter those of LETTER. Answers
-- nothing when there never was such a position here: another Redis took over, without everything, or
-- this one was emptied.
--# include common.lua
--# include outbox.lua
local latest = redis.call('HGET', prefix .. 'counters', 'events')
if tonumber(asked[1]) > tonumber(latest or 0) then
  return false
end
local store = asked[5]
if store then
  local known = redis.call('HMGET', prefix .. 'instance', 'id', 'generation')
  if known[1] ~= store[1] or known[2] ~= store[2] then
    return false
  end
end
local limit, size = asked[3], asked[4]
local events = redis.call(
  'XRANGE', prefix .. 'events', '(' .. asked[1] .. '-0', '+', 'COUNT', limit
)
local entries = redis.call(
  'XRANGE', OUTBOX, '(' .. asked[1] .. '-' .. asked[2], '+', 'COUNT', limit
)

local function number_of(place)
  return tonumber(string.match(place, '^%d+'))
end

local CREATED = {
  'seq', 'created_at', 'type', 'payload', 'priority', 'max_retries', 'ttl', 'timeout', 'labels',
  'more', 'idempotency_key',
}
local DONE = {'retry_count', 'started_at', 'result'}
local LETTER = {'type', 'payload'}
local OVERHEAD = 300 -- core.stream

local function key_expiry(id, queue, key)
  local kept = redis.call('HGET', prefix .. 'idempotency:' .. queue, key)
  local owner, expires = string.match(kept or '', '^(%S+) %S+ (%S+)$')
  return owner == id and tonumber(expires) > now and expires
end

local function parts_of(fields)
  local id, version, to, queue = fields[2], fields[4], fields[8], fields[20]
  if version == '1' then
    local row = redis.call('HMGET', document(id), unpack(CREATED))
    row[#CREATED + 1] = row[#CREATED] and key_expiry(id, queue, row[#CREATED])
    size = size - #row[4]
    return row
  elseif to == 'DONE' then
    local row = redis.call('HMGET', document(id), unpack(DONE))
    size = size - #(row[3] or '')
    return row
  elseif to == 'DEAD_LETTERED' then
    local row = redis.call('HMGET', document(id), unpack(LETTER))
    size = size - #row[2]
    return row
  end
end

local found, n, m = {}, 1, 1
while #found < limit and size > 0 and (events[n] or entries[m]) do
  local event, entry = events[n], entries[m]
  size = size - OVERHEAD
  if entry and (not event or number_of(entry[1]) < number_of(event[1])) then
    found[#found + 1] = entry
    m = m + 1
  else
    size = size - #event[2][18]
    event[3] = parts_of(event[2])
    found[#found + 1] = event
    n = n + 1
  end
end
return found
