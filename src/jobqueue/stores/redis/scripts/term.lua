-- Whether work may be done under a term {holder, epoch}: it must be the very one that is kept, and
-- its time must not be over. By equality: a counter that was wiped revives no old leader.
local function stands(term)
  local kept = redis.call('HMGET', prefix .. 'leader', 'holder', 'epoch', 'until')
  return kept[1] == term[1] and kept[2] == term[2] and tonumber(kept[3]) > now
end
