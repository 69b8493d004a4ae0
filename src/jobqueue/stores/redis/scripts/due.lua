-- Promote delayed jobs, find what is due, forget keys whose time is over.
--
-- asked: {limit, keys at most}. Answers {now, promoted, rows {state, seq, version, lease}, full,
-- the next time}. Repeated, it promotes nothing twice: no lane.
--# include common.lua
--# include routes.lua
--# include jobs.lua
local limit = asked[1]
local due = redis.call('ZRANGEBYSCORE', DUE, '-inf', now_text, 'LIMIT', 0, limit)
local rows, promoted = {}, 0
for _, id in ipairs(due) do
  local row = redis.call(
    'HMGET', document(id), 'status', 'seq', 'version', 'lease', 'expires_at', 'priority', 'queue',
    'type'
  )
  local expires_at = tonumber(row[5])
  if row[1] == 'PENDING' and not (expires_at and expires_at <= now) then
    promoted = promoted + 1
    enter_ready(row[7], row[8], ready_score(row[6], row[2]), id)
    set_due(id, expires_at)
  else
    rows[#rows + 1] = {row[1], row[2], row[3], row[4]}
  end
end
flush()
if promoted > 0 then
  redis.call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' 1')
end

local expiry = prefix .. 'key_expiry'
local expired = redis.call(
  'ZRANGEBYSCORE', expiry, '-inf', now_text, 'WITHSCORES', 'LIMIT', 0, asked[2]
)
for n = 1, #expired, 2 do
  local queue, key = string.match(expired[n], '^([^%z]*)%z(.*)$')
  local keys = prefix .. 'idempotency:' .. queue
  local kept = redis.call('HGET', keys, key)
  -- It may have been taken anew meanwhile.
  if kept and tonumber(string.match(kept, '(%S+)$')) <= now then
    redis.call('HDEL', keys, key)
  end
  redis.call('ZREM', expiry, expired[n])
end

local following = redis.call(
  'ZRANGEBYSCORE', DUE, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, 1
)
return {now_text, promoted, rows, #due >= limit and 1 or 0, following[2] or false}
