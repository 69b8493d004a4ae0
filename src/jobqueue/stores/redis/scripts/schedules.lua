--# schedule_keys
-- A schedule is a hash with the fields name, revision, definition, state and payload. Two sorted
-- sets have the names: all of them by name, and those with a next tick by the time at which the
-- leader must look at them.
local NAMES, NEXT = prefix .. 'schedules', prefix .. 'schedules_due'

local function schedule_key(name)
  return prefix .. 'schedule:' .. name
end

--# schedule_write: write, outbox, schedule_keys
-- Functions that write schedules. A row: {name, revision, due_at or nil, state, definition, payload}

local function has_revision(name, revision)
  return tonumber(call('HGET', schedule_key(name), 'revision') or 0) == revision
end

local function set_next(name, due_at)
  if due_at then
    call('ZADD', NEXT, exact(due_at), name)
  else
    call('ZREM', NEXT, name)
  end
end

local function put_schedule(kind, row)
  put(kind, 'name', row[1], 'revision', row[2], 'state', row[4])
end

local function put_whole(kind, row)
  put(
    kind, 'name', row[1], 'revision', row[2], 'state', row[4], 'definition', row[5],
    'payload', row[6]
  )
end

local function write_whole(row)
  call(
    'HSET', schedule_key(row[1]), 'name', row[1], 'revision', row[2], 'state', row[4],
    'definition', row[5], 'payload', row[6]
  )
  call('ZADD', NAMES, 0, row[1])
  set_next(row[1], row[3])
end

--# create_schedule: schedule_write
-- Create a schedule. Returns {1}, or nothing if the name is taken. asked: {row}
local row = asked[1]
if not has_revision(row[1], 0) then
  return false
end
write_whole(row)
put_whole('schedule_created', row)
tell(SCHEDULES)
return answer({1})

--# change_schedule: schedule_write
-- Replace a schedule by its next revision. Returns {1}, or nothing if the stored revision is not the
-- one before it. asked: {row}
local row = asked[1]
if row[2] < 2 or not has_revision(row[1], row[2] - 1) then
  return false
end
write_whole(row)
put_whole('schedule_changed', row)
tell(SCHEDULES)
return answer({1})

--# advance_schedules: schedule_write, term
-- Replace the states of schedules by those of their next revisions. Returns 1 or 0 for each, or
-- nothing if the term is over. asked: {term or nil, rows without definition and payload}
if asked[1] and not stands(asked[1]) then
  return false
end
local done = {}
for n, row in ipairs(asked[2]) do
  done[n] = 0
  if row[2] > 1 and has_revision(row[1], row[2] - 1) then
    call('HSET', schedule_key(row[1]), 'revision', row[2], 'state', row[4])
    set_next(row[1], row[3])
    put_schedule('schedule_ticked', row)
    done[n] = 1
  end
end
return answer(done)

--# remove_schedule: schedule_write
-- Remove a schedule. Returns {1}, or nothing if there is none with this name. asked: {name}
local name = asked[1]
local kept = call('HMGET', schedule_key(name), 'revision', 'state')
if not kept[1] then
  return false
end
call('DEL', schedule_key(name))
call('ZREM', NAMES, name)
call('ZREM', NEXT, name)
put_schedule('schedule_removed', {name, kept[1], nil, kept[2]})
tell(SCHEDULES)
return answer({1})

--# due_schedules: schedule_keys
-- Return {names of the schedules that are due, the time of the next one or nil}. asked: {now}
local later = call('ZRANGE', NEXT, '(' .. exact(asked[1]), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
return {call('ZRANGE', NEXT, '-inf', exact(asked[1]), 'BYSCORE'), later[2]}

--# get_schedules: schedule_keys
-- Return the schedules with the given names: {name, revision, definition, state, payload}.
-- asked: {names}
local found = {}
for _, name in ipairs(asked[1]) do
  local row = call(
    'HMGET', schedule_key(name), 'name', 'revision', 'definition', 'state', 'payload'
  )
  if row[1] then
    found[#found + 1] = row
  end
end
return found

--# list_schedules: schedule_keys
-- Return schedules in the order of their names, without their payloads. asked: {the name that they
-- follow, or an empty text; limit}
local first = asked[1] == '' and '-' or '(' .. asked[1]
local found = {}
for n, name in ipairs(call('ZRANGE', NAMES, first, '+', 'BYLEX', 'LIMIT', 0, asked[2])) do
  found[n] = call('HMGET', schedule_key(name), 'name', 'revision', 'definition', 'state')
end
return found

--# restore_schedules: restore_step, schedule_write
-- Write rebuilt schedules. Returns {their number}, or nothing if another replay is in progress.
-- asked: {token, rows}
for _, row in ipairs(asked[2]) do
  write_whole(row)
end
return answer({#asked[2]})
