-- A replay that has begun and not ended, by whom and since when. Nobody opens such a store.
local RESTORING = prefix .. 'restoring'

local function ours(token)
  return redis.call('HGET', RESTORING, 'token') == token
end
