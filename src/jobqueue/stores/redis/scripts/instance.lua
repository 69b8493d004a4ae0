-- Which store this is, for readers of its event stream (core/identity.py): {id, generation, the
-- generations that it goes on from}. Drawn once; records of earlier versions do not say who wrote
-- them: those of a stream that is there are this store's.
local INSTANCE = prefix .. 'instance'

local function instance(drawn)
  if redis.call('EXISTS', INSTANCE) == 0 then
    local continues = redis.call('EXISTS', MARK) == 1 and 'unnamed' or ''
    redis.call('HSET', INSTANCE, 'id', drawn, 'generation', '1', 'continues', continues)
  end
  return redis.call('HMGET', INSTANCE, 'id', 'generation', 'continues')
end
