-- Of these jobs, those that are over or not at the version that was seen.
-- asked: {numbers, versions (0: any)}
--# include common.lua
local moved = {}
for n, seq in ipairs(asked[1]) do
  local id = id_of(seq)
  local row = id and redis.call('HMGET', document(id), 'status', 'version')
  local version = asked[2][n]
  if
    not row or row[1] == 'DONE' or row[1] == 'DEAD_LETTERED'
    or (version ~= 0 and tonumber(row[2]) ~= version)
  then
    moved[#moved + 1] = seq
  end
end
return moved
