-- A heartbeat. asked: {worker, incarnation, leases that are executed, assignment timeout, slots that
-- are withheld (nil: as before), progress {value ('': not known), text} by lease, owner, slots that are
-- overrun (nil: as before)}
-- Answers {status, leases in force}, {'denied'} if it is another owner's, or nothing if it must register
-- again. May be repeated.
--# include common.lua
--# include held.lua
--# include owners.lua
local id = asked[1]
local key = prefix .. 'worker:' .. id
local known = redis.call('HMGET', key, 'incarnation', 'status', 'withheld', 'owner')
if not owner_allows(known[4], asked[7]) then
  return {'denied'}
end
if known[1] ~= asked[2] or known[2] == 'OFFLINE' then
  return false
end
redis.call('HSET', key, 'last_heartbeat', iso(now))
redis.call('ZADD', prefix .. 'workers', now_text, id)
if asked[5] and asked[5] ~= tonumber(known[3] or 0) then
  redis.call('HSET', key, 'withheld', asked[5])
  redis.call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' 4') -- core.store.Change.CONTROL
end
if asked[8] then
  redis.call('HSET', key, 'overrun', asked[8])
end
-- Progress counts while its job is RUNNING under its lease. Nothing looks for it when an attempt
-- ends: "progress" has the jobs that it may have to be removed from, by the time of the last look.
local told = 0
local PROGRESS = prefix .. 'progress'

local function keep_progress(job, lease, value, text)
  told = told + 1
  redis.call('ZADD', PROGRESS, now_text, job)
  redis.call(
    'HSET', document(job), 'progress', value, 'progress_text', text, 'progress_at', now_text,
    'progress_lease', lease
  )
end

local function forget_progress(count)
  local old = redis.call('ZRANGEBYSCORE', PROGRESS, '-inf', exact(now - 60), 'LIMIT', 0, count)
  for _, job in ipairs(old) do
    local row = redis.call('HMGET', document(job), 'lease', 'progress_lease')
    if row[1] and row[1] == row[2] then
      redis.call('ZADD', PROGRESS, now_text, job)
    else
      redis.call(
        'HDEL', document(job), 'progress', 'progress_text', 'progress_at', 'progress_lease'
      )
      redis.call('ZREM', PROGRESS, job)
    end
  end
end

local begun = {}
for _, lease in ipairs(asked[3]) do
  begun[lease] = true
end
local rows = held_by(id)
for _, row in ipairs(rows) do
  if begun[row[2]] and row[4] == 'ASSIGNED' then
    redis.call('ZADD', prefix .. 'due', exact(now + asked[4]), id_of(row[1]))
  end
  local said = asked[6][row[2]]
  if said then
    keep_progress(id_of(row[1]), row[2], said[1], said[2])
  end
end
if told > 0 then
  forget_progress(told + 10)
end
return {known[2], rows}
