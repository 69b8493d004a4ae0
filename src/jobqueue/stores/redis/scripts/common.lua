-- What every script begins with.
--
-- KEYS[1]  the prefix of every key. Its {hash tag} keeps all of them in one slot.
-- ARGV[1]  the time of an injected clock, or '' for the server's own
-- ARGV[2]  who calls, for those who listen
-- ARGV[3]  the lane of a write, and ARGV[4] the number of the call in it (lane.lua)
-- ARGV[5]  what is asked for, in MessagePack
--
-- Leases, incarnations and holders have 63 bits. They are text everywhere: Lua's numbers have 53.
local prefix = KEYS[1]
local asked = cmsgpack.unpack(ARGV[5])

local now = tonumber(ARGV[1])
local injected = now ~= nil
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end

-- A number as text. RESP would cut it off at the point; and what is written more than once in a
-- call is made into text once, here or by tostring: that is slow, also if redis.call does it.
local function exact(number)
  return string.format('%.17g', number)
end

local now_text = exact(now)

local function document(id)
  return prefix .. 'job:' .. id
end

-- The jobs of a queue in one state, by their number. Their counts are the queue's depth.
local indexes = {}

local function index(state, queue)
  local of_state = indexes[state]
  if not of_state then
    of_state = {}
    indexes[state] = of_state
  end
  local key = of_state[queue]
  if not key then
    key = prefix .. string.lower(state) .. ':' .. queue
    of_state[queue] = key
  end
  return key
end

local function id_of(seq)
  return redis.call('ZRANGEBYSCORE', prefix .. 'jobs', seq, seq)[1]
end

-- A time as people read it (RFC 3339), to the microsecond. The last one is kept: most are `now`.
local iso_at, iso_text

local function iso(at)
  if at == iso_at then
    return iso_text
  end
  local seconds = math.floor(at)
  local micros = math.floor((at - seconds) * 1000000 + 0.5)
  if micros == 1000000 then
    seconds, micros = seconds + 1, 0
  end
  local days = math.floor(seconds / 86400)
  local rest = seconds - days * 86400
  -- Days since 1970 to a date of the Gregorian calendar, whose years begin in March here.
  local z = days + 719468
  local era = math.floor(z / 146097)
  local day = z - era * 146097
  local year = math.floor(
    (day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365
  )
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  iso_at, iso_text = at, string.format(
    '%04d-%02d-%02dT%02d:%02d:%02d.%06dZ',
    year, month, day,
    math.floor(rest / 3600), math.floor(rest / 60) % 60, rest % 60, micros
  )
  return iso_text
end
