-- Takes locks in order until enough are taken; returns the positions of these, from 0.
--
-- KEYS[1]  prefix of every lock. Its {hash tag} keeps all of them in one slot, so that one key
--          stands for all: a key for each name costs the caller three times as much to send.
-- ARGV[1]  token of the calling process
-- ARGV[2]  how many are wanted
-- ARGV[3]  life of a lock in milliseconds
-- ARGV[4]  the names, one on a line
local prefix, token, life = KEYS[1], ARGV[1], ARGV[3]
local wanted = tonumber(ARGV[2])
local won, count, position = {}, 0, 0

for name in string.gmatch(ARGV[4], '[^\n]+') do
  local key = prefix .. name
  local mine = redis.call('SET', key, token, 'NX', 'PX', life)
  -- Its own lock is won again: a server that could not write the assignment tries once more.
  if not mine and redis.pcall('GET', key) == token then
    redis.call('PEXPIRE', key, life)
    mine = true
  end
  if mine then
    count = count + 1
    won[count] = position
    if count == wanted then
      break
    end
  end
  position = position + 1
end

return won
