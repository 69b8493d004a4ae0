--# documents
-- Return the fields of several jobs at one moment. A removed job has no fields. asked: {ids}
local found = {}
for n, id in ipairs(asked[1]) do
  found[n] = call('HGETALL', document(id))
end
return found

--# history
-- Return the newest events of a job, in order. asked: {id, before this version or nil, how many}
local key = document(asked[1])
local last = tonumber(call('HGET', key, 'version') or 0)
if asked[2] then last = math.min(last, asked[2] - 1) end
local found = {}
for version = math.max(1, last - asked[3] + 1), last do
  local place = call('HGET', key, 'event:' .. version) .. '-0'
  found[#found + 1] = call('XRANGE', prefix .. 'events', place, place)[1]
end
return found

--# describe
-- Return the causes of dead letters. Other jobs are left out. asked: {numbers, bytes of an error}
local found = {}
for _, seq in ipairs(asked[1]) do
  local id = id_of(seq)
  local row = id and call(
    'HMGET', document(id), 'status', 'version', 'queue', 'type', 'reason', 'error', 'completed_at')
  if row and row[1] == 'DEAD_LETTERED' then
    local error = string.sub(row[6] or '', 1, asked[2])
    found[#found + 1] = {
      string.format('%.0f', seq), row[2], id, row[3], row[4] or '', row[5], error, row[7]}
  end
end
return found

--# moved_on
-- Return the numbers of those jobs that have ended or do not have the given version any more.
-- asked: {numbers, versions (0: any)}
local moved = {}
for n, seq in ipairs(asked[1]) do
  local id = id_of(seq)
  local row = id and call('HMGET', document(id), 'status', 'version')
  local version = asked[2][n]
  if
    not row or row[1] == 'DONE' or row[1] == 'DEAD_LETTERED'
    or (version ~= 0 and tonumber(row[2]) ~= version)
  then
    moved[#moved + 1] = seq
  end
end
return moved

--# list
-- Read jobs in the order of their numbers, and return those that match.
--
-- asked: {indexes {state, queue} or nil for all jobs, down, after (exclusive) or nil, how many,
-- how many to read, type or nil, cancelled or nil, form of results, reasons or nil, error text or
-- nil, ended since or nil, ended before or nil}
-- Returns {the last number read (nothing: no more jobs), results, how many were read}. A result has
-- all fields ('whole'), number and version ('version'), or id and time of creation ('time').
local down, wanted, budget = asked[2], asked[4], asked[5]
local keys = {}
if asked[1] then
  for _, one in ipairs(asked[1]) do
    for _, queue in ipairs(one[2] and {one[2]} or call('SMEMBERS', prefix .. 'every_queue')) do
      keys[#keys + 1] = index(one[1], queue)
    end
  end
else
  keys = {prefix .. 'jobs'}
end

local edge = asked[3] and '(' .. asked[3] or (down and '+inf' or '-inf')
local command = down and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
local far_end = down and '-inf' or '+inf'

local candidates = {}

-- Read the next jobs of an index. Jobs after the last one read are not known yet.
local function give(source, count)
  local rows = call(command, source.key, source.edge, far_end, 'WITHSCORES', 'LIMIT', 0, count)
  for n = 1, #rows, 2 do
    candidates[#candidates + 1] = {tonumber(rows[n + 1]), rows[n]}
  end
  source.given = source.given + #rows / 2
  source.last = nil
  if #rows == 2 * count then
    source.last, source.edge = tonumber(rows[#rows]), '(' .. rows[#rows]
  end
end

-- Return the index whose last known job comes first. Up to this job, all indexes are known.
local function shortest(sources)
  local found = nil
  for _, source in ipairs(sources) do
    local last = source.last
    if last and (not found or (down and last > found.last) or (not down and last < found.last)) then
      found = source
    end
  end
  return found
end

-- Merge candidates of all indexes. From each index an equal share is read at first. Then more is
-- read from the index that is known least far, twice as much each time, until there are enough
-- candidates. So thousands of indexes do not mean that thousands of times as many jobs are read.
local share = math.max(4, math.ceil(budget / #keys))
local sources = {}
for n, key in ipairs(keys) do
  sources[n] = {key = key, edge = edge, given = 0}
  give(sources[n], share)
end
local most = #candidates + budget
local short = shortest(sources)
while short and short.given < budget and #candidates < most do
  give(short, short.given)
  short = shortest(sources)
end
local complete = short and short.last
table.sort(candidates, function(a, b)
  if down then
    return a[1] > b[1]
  end
  return a[1] < b[1]
end)

local reasons = nil
if asked[9] then
  reasons = {}
  for _, reason in ipairs(asked[9]) do
    reasons[reason] = true
  end
end

local function matches(row)
  if asked[6] and row[1] ~= asked[6] then
    return false
  end
  if reasons and not reasons[row[3]] then
    return false
  end
  if asked[10] and not string.find(row[5] or '', asked[10], 1, true) then
    return false
  end
  if asked[11] or asked[12] then
    local ended = tonumber(row[6] or nil)
    if not ended or (asked[11] and ended < asked[11]) or (asked[12] and ended >= asked[12]) then
      return false
    end
  end
  if asked[7] == nil or row[2] ~= 'DEAD_LETTERED' then
    return true
  end
  return (row[3] == 'CANCELLED') == asked[7]
end

local function told(seq, id, row)
  if asked[8] == 'whole' then
    return call('HGETALL', document(id))
  elseif asked[8] == 'version' then
    return {string.format('%.0f', seq), row[7]}
  end
  return {id, row[4]}
end

local picked = {}
for looked_at, candidate in ipairs(candidates) do
  local seq, id = candidate[1], candidate[2]
  local row = call(
    'HMGET', document(id), 'type', 'status', 'reason', 'created_at', 'error', 'completed_at', 'version')
  if matches(row) then
    picked[#picked + 1] = told(seq, id, row)
  end
  if #picked == wanted or seq == complete or looked_at == budget then
    return {string.format('%.0f', seq), picked, looked_at}
  end
end
return {false, picked, #candidates}
