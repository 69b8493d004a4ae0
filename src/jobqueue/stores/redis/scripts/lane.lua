-- A write whose answer was lost is asked again, and must not happen twice.
--
-- Every process has a few lanes, with one call at a time in each. The lane keeps the number and the
-- answer of the latest call that changed something, written together with what it changed. The
-- same number again gets the same answer; a lower one comes from a connection that was given up.
local lane = prefix .. 'lane:' .. ARGV[3]

local function answered()
  local kept = redis.call('GET', lane)
  if not kept then
    return nil
  end
  local colon = string.find(kept, ':', 1, true)
  local number, call = tonumber(string.sub(kept, 1, colon - 1)), tonumber(ARGV[4])
  if number > call then
    return redis.error_reply('OVERTAKEN a later call of this lane was answered')
  end
  return number == call and cmsgpack.unpack(string.sub(kept, colon + 1)) or nil
end

local WORK, ENDED, CONTROL, ASSIGNED = 1, 2, 4, 8 -- core.store.Change
local changes = {}

local function tell(change)
  changes[change] = true
end

-- Keep the answer, and wake whoever listens.
local function answer(said)
  redis.call('SET', lane, ARGV[4] .. ':' .. cmsgpack.pack(said), 'EX', 3600)
  local all = 0
  for change in pairs(changes) do
    all = all + change
  end
  if all > 0 then
    redis.call('PUBLISH', prefix .. 'changes', ARGV[2] .. ' ' .. all)
  end
  return said
end
