--# common
-- Every script begins with this section.
--
-- KEYS[1]  the prefix of every key. Its {hash tag} keeps all of them in one slot.
-- ARGV[1]  the time of an injected clock, or '' for the server's own
-- ARGV[2]  the id of the calling process
-- ARGV[3]  the call sequence of a write, and ARGV[4] the number of the call in it
-- ARGV[5]  the arguments of the script, in MessagePack
--
-- Leases, incarnations and holders have 63 bits. They are text everywhere, because Lua's numbers
-- have 53 bits.
local prefix = KEYS[1]
local asked = cmsgpack.unpack(ARGV[5])
local call = redis.call

local now = tonumber(ARGV[1])
local injected = now ~= nil
if not now then
  local time = call('TIME')
  now = time[1] + time[2] / 1000000
end

-- Return a number as text with all its digits. RESP would cut off the fraction. Convert a number
-- only once if it is written several times, because redis.call converts numbers slowly.
local function exact(number)
  return string.format('%.17g', number)
end

local now_text = exact(now)

local function document(id)
  return prefix .. 'job:' .. id
end

-- Return the table under a key of a table. Create it on the first call.
local function table_of(tables, key)
  local found = tables[key]
  if not found then
    found = {}
    tables[key] = found
  end
  return found
end

-- Return the key of the sorted set with a queue's jobs in one state. The set's size is the queue's
-- depth in this state.
local indexes = {}

local function index(state, queue)
  local of_state = table_of(indexes, state)
  local key = of_state[queue]
  if not key then
    key = prefix .. string.lower(state) .. ':' .. queue
    of_state[queue] = key
  end
  return key
end

local function id_of(seq)
  return call('ZRANGEBYSCORE', prefix .. 'jobs', seq, seq)[1]
end

-- Return a time as a text in RFC 3339 with microseconds. The last result is cached, because most
-- times are `now`.
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
  -- Convert days since 1970 to a date. The calculation uses years that begin in March.
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

--# news
-- Send hints to other processes.
local WORK, ENDED, CONTROL, ASSIGNED, SCHEDULES = 1, 2, 4, 8, 16 -- core.store.Change

local function publish(change)
  call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' ' .. change)
end

--# numbered: news
-- A write whose answer was lost is sent again, and must not take effect twice.
--
-- Every process has a few sequences of numbered calls. Each sequence has one call at a time. Redis
-- stores the number and the answer of the latest call of a sequence together with its changes. If
-- the same number comes again, it gets the stored answer. A lower number comes from a connection
-- that its process has abandoned, and is refused.
local sequence = prefix .. 'lane:' .. ARGV[3]

local function answered()
  local kept = call('GET', sequence)
  if not kept then
    return nil
  end
  local colon = string.find(kept, ':', 1, true)
  local number, latest = tonumber(string.sub(kept, 1, colon - 1)), tonumber(ARGV[4])
  if number > latest then
    return redis.error_reply('OVERTAKEN a later call of this sequence was answered')
  end
  return number == latest and cmsgpack.unpack(string.sub(kept, colon + 1)) or nil
end

local changes = {}

local function tell(change)
  changes[change] = true
end

-- Store the answer, and publish the changes to other processes.
local function answer(said)
  call('SET', sequence, ARGV[4] .. ':' .. cmsgpack.pack(said), 'EX', 3600)
  local all = 0
  for change in pairs(changes) do
    all = all + change
  end
  if all > 0 then
    publish(all)
  end
  return said
end

--# write: numbered
-- A write whose answer is stored unchanged.
local before = answered()
if before then
  return before
end

--# term
-- Leadership: the key `leader` has the value HOLDER:EPOCH and expires at the end of the term. The
-- hash `term` describes the latest term and does not expire. Its `until` is the end of the term by
-- the clock of the calls, which may be a test's clock; `leader` expires by the clock of Redis.
local LEADER, TERM = prefix .. 'leader', prefix .. 'term'

-- Return true if a term {holder, epoch} is the latest term and not over. Epochs must be equal. So
-- an old leader cannot continue after the counter of epochs was lost.
local function stands(term)
  return call('GET', LEADER) == term[1] .. ':' .. term[2]
    and tonumber(call('HGET', TERM, 'until') or 0) > now
end

--# led_write: write, term
-- A write under a term, which is its first argument. Returns nothing if the term is over.
if not stands(asked[1]) then
  return false
end

--# lead: write, term
-- Take the lead, or renew it. A holder may renew late if no other server has taken the lead.
-- Returns {epoch}, or nothing. asked: {holder, ttl, name}
local holder, ttl = asked[1], asked[2]
local life = math.max(1, math.floor(ttl * 1000 + 0.5))
local kept = call('HMGET', TERM, 'holder', 'epoch', 'until')
local epoch = kept[2]
if kept[1] == holder then
  call('SET', LEADER, holder .. ':' .. epoch, 'PX', life)
else
  if tonumber(kept[3] or 0) <= now then
    call('DEL', LEADER) -- over by a test's clock
  end
  epoch = string.format('%.0f', (epoch or 0) + 1)
  if not call('SET', LEADER, holder .. ':' .. epoch, 'NX', 'PX', life) then
    return false
  end
end
if injected then
  call('PERSIST', LEADER) -- only the injected clock counts
end
if call('HGET', TERM, 'named') ~= epoch then
  call('HSET', TERM, 'name', asked[3], 'since', now_text, 'named', epoch)
end
call('HSET', TERM, 'holder', holder, 'epoch', epoch, 'until', exact(now + ttl))
return answer({epoch})

--# leader: term
-- Return the current leader: {epoch, name, since}, or nothing. A server of an earlier version does
-- not change the name, so `named` has the epoch that the name belongs to.
local kept = call('HMGET', TERM, 'holder', 'epoch', 'name', 'since', 'named')
if not kept[1] or not stands({kept[1], kept[2]}) then
  return false
end
if kept[5] ~= kept[2] then
  return {kept[2], '', '0'}
end
return {kept[2], kept[3], kept[4]}

--# resign: write, term
-- Give up the lead, if the term is the latest one. asked: {term}
local term = asked[1]
local kept = call('HMGET', TERM, 'holder', 'epoch')
if kept[1] ~= term[1] or kept[2] ~= term[2] then
  return false
end
call('DEL', LEADER)
call('HDEL', TERM, 'holder', 'until') -- the epoch stays, so that it is never used again
tell(CONTROL)
return answer({1})
