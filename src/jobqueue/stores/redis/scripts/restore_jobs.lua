-- Write rebuilt jobs. Answers {how many}, or nothing if this replay is not the one under way.
--
-- asked: {token, jobs, keys}
-- A job: id, seq, queue, state, priority, fields, events {version, before, after, reason, at,
-- attempt, worker, detail, more}, whether it is claimable, due, worker and lease that hold it, when
-- it was done, type. A key: queue, key, what is kept of it, when it expires.
--# include common.lua
--# include lane.lua
--# include jobs.lua
--# include restoring.lua
local before = answered()
if before then
  return before
end
if not ours(asked[1]) then
  return false
end
local jobs, keys = asked[2], asked[3]
local events = 0
for _, job in ipairs(jobs) do
  events = events + #job[7]
end
expect_events(events)
for _, job in ipairs(jobs) do
  local id, seq, queue, fields = job[1], job[2], job[3], job[6]
  for _, event in ipairs(job[7]) do
    fields[#fields + 1] = 'event:' .. event[1]
    fields[#fields + 1] = record(
      id, event[1], event[2], event[3], event[4], event[5], event[6], event[7], event[8], queue,
      event[9]
    )
  end
  in_parts('HSET', document(id), fields)
  add(prefix .. 'jobs', seq, id)
  enter(id, seq, queue, nil, job[4])
  if job[8] then
    enter_ready(queue, job[13], ready_score(job[5], seq), id)
  end
  if job[9] then
    set_due(id, job[9])
  end
  if job[11] then
    hold(job[10], id, job[11])
  end
  if job[12] then
    add(prefix .. 'completed', job[12], id)
  end
end
flush()
give_back()
for _, key in ipairs(keys) do
  redis.call('HSET', prefix .. 'idempotency:' .. key[1], key[2], key[3])
  redis.call('ZADD', prefix .. 'key_expiry', key[4], key[1] .. '\0' .. key[2])
end
return answer({#jobs})
