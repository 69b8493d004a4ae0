-- How far the mark is behind: {events and entries, the time of the oldest, now, refused}, or nothing
-- if there is no stream.
--# include common.lua
--# include outbox.lua
local mark = redis.call('HMGET', MARK, 'event', 'refused')
if not mark[1] then
  return false
end
local events, times = prefix .. 'events', {}
local count = redis.call('XLEN', OUTBOX) -- what the mark has passed is not in it
local first = redis.call('XRANGE', events, '(' .. mark[1] .. '-0', '+', 'COUNT', 1)[1]
if first then
  -- Numbers have no gaps but for jobs that were removed before there was a stream.
  local latest = redis.call('HGET', prefix .. 'counters', 'events')
  local behind = latest - string.match(first[1], '^%d+') + 1
  count = count + math.min(behind, redis.call('XLEN', events))
  times[1] = tonumber(first[2][12])
end
local entry = redis.call('XRANGE', OUTBOX, '-', '+', 'COUNT', 1)[1]
if entry then
  times[#times + 1] = tonumber(entry[2][4])
end
return {count, #times > 0 and exact(math.min(unpack(times))) or now_text, now_text, mark[2]}
