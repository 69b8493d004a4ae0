--# outbox
-- The outbox: changes that are no events, stored for the event stream until its mark has passed
-- them. Without a stream nothing is stored. An entry's id has the number of the event that it comes
-- after, and a number that increases.
local MARK, OUTBOX = prefix .. 'stream', prefix .. 'outbox'

local function place_of(after)
  return after .. '-' .. call('HINCRBY', prefix .. 'counters', 'outbox', 1)
end

local after -- the latest event; false: there is no stream

local function put(kind, ...)
  if after == nil then
    after = call('EXISTS', MARK) == 1
    after = after and (call('HGET', prefix .. 'counters', 'events') or '0')
  end
  if after then
    call('XADD', OUTBOX, place_of(after), 'kind', kind, 'at', now_text, ...)
  end
end

local NO_SETTINGS = {deleted = true, succeeded = true, failed = true, run_seconds = true}

-- Return a queue's settings as fields of an entry, sorted by name, because a hash has no order.
local function settings_of(name)
  local values = call('HGETALL', prefix .. 'queue:' .. name)
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

--# instance: outbox
-- Return the identity of this store, for readers of its event stream (core/identity.py): {id,
-- generation, the generations that it continues}. It is drawn once. Records of earlier versions do
-- not name their store; those of an existing stream belong to this store.
local INSTANCE = prefix .. 'instance'

local function instance(drawn)
  if call('EXISTS', INSTANCE) == 0 then
    local continues = call('EXISTS', MARK) == 1 and 'unnamed' or ''
    call('HSET', INSTANCE, 'id', drawn, 'generation', '1', 'continues', continues)
  end
  return call('HMGET', INSTANCE, 'id', 'generation', 'continues')
end

--# identity: instance
-- Return the identity of this store. May be repeated. asked: {an id, for a store that has none}
return instance(asked[1])

--# begin_stream: led_write, instance, schedule_keys
-- Return the mark. If there is none, start a stream with its mark before the first event. The
-- outbox then begins with the creation of every queue and schedule, and the registration of every
-- worker. Returns {event, entry, id, generation}, or nothing if the term is over.
-- asked: {term, an id, for a store that has none}
local store = instance(asked[2]) -- before there is a mark
if call('EXISTS', MARK) == 1 then
  local mark = call('HMGET', MARK, 'event', 'entry')
  return {mark[1], mark[2], store[1], store[2]}
end
call('HSET', MARK, 'event', '0', 'entry', '0', 'refused', '0')
local queues = call('SMEMBERS', prefix .. 'queues')
for _, name in ipairs(queues) do
  -- These entries come before all events, so that a queue comes before its jobs.
  call(
    'XADD', OUTBOX, place_of('0'), 'kind', 'queue_created', 'at', now_text,
    unpack(settings_of(name))
  )
end
for _, name in ipairs(call('ZRANGE', NAMES, 0, -1)) do
  call(
    'XADD', OUTBOX, place_of('0'), 'kind', 'schedule_created', 'at', now_text,
    unpack(call('HGETALL', schedule_key(name)))
  )
end
for _, name in ipairs(queues) do
  for _, id in ipairs(call('ZRANGE', index('RUNNING', name), 0, -1)) do
    local row = call('HMGET', document(id), 'cancel_requested', 'version')
    if row[1] then
      put('cancel', 'job_id', id, 'queue', name, 'version', row[2])
    end
  end
end
for _, id in ipairs(call('ZRANGE', prefix .. 'workers', 0, -1)) do
  local row = call('HMGET', prefix .. 'worker:' .. id, 'status', 'incarnation')
  if row[1] ~= 'OFFLINE' then
    put('worker_registered', 'worker_id', id, 'incarnation', row[2])
  end
end
return answer({'0', '0', store[1], store[2]})

--# end_stream: led_write, outbox
-- End the stream: nothing is stored for it any more. Returns {1}, or nothing if the term is over.
-- asked: {term}
call('DEL', MARK, OUTBOX)
return answer({1})

--# changes: outbox
-- Return events and entries of the outbox in the order of their commits, from a position on. Each
-- event comes with those fields of its job that never change again. A job exists as long as its
-- events.
--
-- asked: {event, entry, limit, bytes, the store that the position is of: {id, generation} or
-- nothing}. Returns {place, fields, parts or nil}. The parts of a first event are the fields
-- CREATED below and the time when the key expires; those of a success are DONE, those of a dead
-- letter LETTER. Returns nothing if this Redis never had the position: another Redis took over
-- without all writes, or this Redis was emptied.
local latest = call('HGET', prefix .. 'counters', 'events')
if tonumber(asked[1]) > tonumber(latest or 0) then
  return false
end
local store = asked[5]
if store then
  local known = call('HMGET', prefix .. 'instance', 'id', 'generation')
  if known[1] ~= store[1] or known[2] ~= store[2] then
    return false
  end
end
local limit, size = asked[3], asked[4]
local events = call('XRANGE', prefix .. 'events', '(' .. asked[1] .. '-0', '+', 'COUNT', limit)
local entries = call('XRANGE', OUTBOX, '(' .. asked[1] .. '-' .. asked[2], '+', 'COUNT', limit)

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
  local kept = call('HGET', prefix .. 'idempotency:' .. queue, key)
  local owner, expires = string.match(kept or '', '^(%S+) %S+ (%S+)$')
  return owner == id and tonumber(expires) > now and expires
end

local function parts_of(fields)
  local id, version, to, queue = fields[2], fields[4], fields[8], fields[20]
  if version == '1' then
    local row = call('HMGET', document(id), unpack(CREATED))
    row[#CREATED + 1] = row[#CREATED] and key_expiry(id, queue, row[#CREATED])
    size = size - #row[4]
    return row
  elseif to == 'DONE' then
    local row = call('HMGET', document(id), unpack(DONE))
    size = size - #(row[3] or '')
    return row
  elseif to == 'DEAD_LETTERED' then
    local row = call('HMGET', document(id), unpack(LETTER))
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

--# move_mark: led_write, outbox
-- Move the mark of the stream. Returns {1}, or nothing if the term is over.
-- asked: {term, event, entry, refused}
if call('EXISTS', MARK) == 0 then
  return {1} -- the stream was ended
end
call('HSET', MARK, 'event', asked[2], 'entry', asked[3])
call('HINCRBY', MARK, 'refused', asked[4])
call('XTRIM', OUTBOX, 'MINID', asked[2] .. '-' .. string.format('%.0f', asked[3] + 1))
return answer({1})

--# stream_lag: outbox
-- Return the lag of the mark: {events and entries after it, the time of the oldest, now, refused},
-- or nothing if there is no stream.
local mark = call('HMGET', MARK, 'event', 'refused')
if not mark[1] then
  return false
end
local events, times = prefix .. 'events', {}
local count = call('XLEN', OUTBOX) -- without the entries before the mark, which are removed
local first = call('XRANGE', events, '(' .. mark[1] .. '-0', '+', 'COUNT', 1)[1]
if first then
  -- Numbers have no gaps, except for jobs that were removed before the stream began.
  local latest = call('HGET', prefix .. 'counters', 'events')
  local behind = latest - string.match(first[1], '^%d+') + 1
  count = count + math.min(behind, call('XLEN', events))
  times[1] = tonumber(first[2][12])
end
local entry = call('XRANGE', OUTBOX, '-', '+', 'COUNT', 1)[1]
if entry then
  times[#times + 1] = tonumber(entry[2][4])
end
return {count, #times > 0 and exact(math.min(unpack(times))) or now_text, now_text, mark[2]}

--# restoring
-- A replay in progress: its token and when it began. A store with an unfinished replay is not
-- opened.
local RESTORING = prefix .. 'restoring'

--# restore_step: write, restoring
-- A step of the replay whose token is the first argument. Returns nothing if this replay is not the
-- one in progress.
if call('HGET', RESTORING, 'token') ~= asked[1] then
  return false
end

--# restore_begin: write, term, outbox, restoring, schedule_keys
-- Begin to restore an empty store. Returns {'begun'}, or {what the store contains}. asked: {token,
-- the queue that every server creates}
if call('EXISTS', RESTORING) == 1 then
  return {'restoring'}
end
local ends = tonumber(call('HGET', TERM, 'until') or 0)
if call('EXISTS', LEADER) == 1 and ends > now then
  return {'led'}
end
if call('EXISTS', prefix .. 'jobs') == 1 then
  return {'jobs'}
end
if call('EXISTS', prefix .. 'key_expiry') == 1 then
  return {'idempotency keys'}
end
if call('EXISTS', NAMES) == 1 then
  return {'schedules'}
end
local first = prefix .. 'queue:' .. asked[2]
for _, name in ipairs(call('SMEMBERS', prefix .. 'every_queue')) do
  local row = call('HMGET', first, 'deleted', 'paused', 'succeeded', 'failed')
  if name ~= asked[2] or row[1] or row[2] == '1' or row[3] or row[4] then
    return {'queues'}
  end
end
call('DEL', first, prefix .. 'every_queue', prefix .. 'queues')
call('DEL', MARK, OUTBOX)
call('HSET', RESTORING, 'token', asked[1], 'since', iso(now))
return answer({'begun'})

--# restore_jobs: restore_step, writing
-- Write rebuilt jobs. Returns {their number}, or nothing if another replay is in progress.
--
-- asked: {token, jobs, keys}. A job: {id, seq, queue, type, priority, state, fields, events (as of
-- `apply`), whether it is claimable, due, worker and lease that hold it, when it was done, its unique
-- key and the value of that, concurrency key}. A key:
-- {queue, key, its value, when it expires}.
local jobs, keys = asked[2], asked[3]
local events = 0
for _, job in ipairs(jobs) do
  events = events + #job[8]
end
expect_events(events)
for _, job in ipairs(jobs) do
  local id, seq, queue, fields = job[1], job[2], job[3], job[7]
  record_all(id, queue, job[8], fields)
  in_parts('HSET', document(id), fields)
  add(prefix .. 'jobs', seq, id)
  enter(id, seq, queue, nil, job[6])
  if job[9] then
    enter_ready(queue, job[4], ready_score(job[5], seq), id, job[16])
  end
  if job[10] then
    set_due(id, job[10])
  end
  if job[12] then
    hold(job[11], id, job[12])
    if job[16] then
      hold_key(queue, id, job[16])
    end
  end
  if job[13] then
    add(prefix .. 'completed', job[13], id)
  end
  if job[14] then -- jobs come in the order of their numbers: the latest one has the key
    call('HSET', prefix .. 'unique:' .. queue, job[14], job[15])
  end
end
flush()
give_back()
for _, key in ipairs(keys) do
  call('HSET', prefix .. 'idempotency:' .. key[1], key[2], key[3])
  call('ZADD', prefix .. 'key_expiry', key[4], key[1] .. '\0' .. key[2])
end
return answer({#jobs})

--# restore_end: restore_step, instance
-- The last step of a replay: write the queues and the last numbers of jobs and changes. Returns
-- {'done'}, or nothing if this replay is not the one in progress.
--
-- asked: {token, queues {name, fields, whether it was deleted}, the last number of a job, of a
-- queue's change, the latest time of creation, whether the stream has all this, {id, generation and
-- what it continues} of the store}
for _, queue in ipairs(asked[2]) do
  call('HSET', prefix .. 'queue:' .. queue[1], unpack(queue[2]))
  call('SADD', prefix .. 'every_queue', queue[1])
  if not queue[3] then
    call('SADD', prefix .. 'queues', queue[1])
  end
end
local counters = prefix .. 'counters'
local function raise(counter, to)
  if tonumber(call('HGET', counters, counter) or 0) < to then
    call('HSET', counters, counter, string.format('%.17g', to))
  end
end
raise('seq', asked[3])
raise('outbox', asked[4])
raise('latest', asked[5])
if asked[6] then
  call(
    'HSET', MARK, 'event', call('HGET', counters, 'events') or '0',
    'entry', call('HGET', counters, 'outbox') or '0', 'refused', '0'
  )
end
local store = asked[7]
call('HSET', INSTANCE, 'id', store[1], 'generation', store[2], 'continues', store[3])
call('DEL', RESTORING)
tell(WORK)
tell(CONTROL)
return answer({'done'})
