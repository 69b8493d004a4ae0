-- The lead: `leader` is HOLDER:EPOCH for as long as the term lasts, `term` the latest one there was.
-- Its epoch outlives `leader`; its `until` is the same end by the clock of the calls, which may be a
-- test's. Redis ends `leader` by its own clock only.
local LEADER, TERM = prefix .. 'leader', prefix .. 'term'

-- Whether work may be done under a term {holder, epoch}: it must be the very one that is kept, and
-- its time must not be over. By equality: a counter that was wiped revives no old leader.
local function stands(term)
  return redis.call('GET', LEADER) == term[1] .. ':' .. term[2]
    and tonumber(redis.call('HGET', TERM, 'until') or 0) > now
end
