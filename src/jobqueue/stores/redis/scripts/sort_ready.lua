-- Move what can be claimed from where an earlier version has it: in one sorted set for each queue,
-- whatever the types. Answers {how many jobs were moved, 1 if there are more}. Asked again, it moves
-- nothing twice: no lane. asked: {jobs at most}
--# include common.lua
--# include routes.lua
--# include jobs.lua
local left, more = asked[1], 0
for _, name in ipairs(redis.call('SMEMBERS', prefix .. 'every_queue')) do
  local old = prefix .. 'ready:' .. name
  if redis.call('EXISTS', old) == 1 then
    if left == 0 then
      more = 1
      break
    end
    local jobs = redis.call('ZRANGE', old, 0, left - 1, 'WITHSCORES')
    for n = 1, #jobs, 2 do
      local id, score = jobs[n], jobs[n + 1]
      local row = redis.call('HMGET', document(id), 'type', 'status')
      if row[2] == 'PENDING' then
        enter_ready(name, row[1], tonumber(score), id)
      end
    end
    redis.call('ZREMRANGEBYRANK', old, 0, #jobs / 2 - 1)
    left = left - #jobs / 2
    if redis.call('EXISTS', old) == 1 then
      more = 1
    end
  end
end
flush()
if left < asked[1] then
  redis.call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' 1')
end
return {asked[1] - left, more}
