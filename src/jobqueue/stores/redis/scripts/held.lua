-- A lease in force: seq, lease, worker, state, cancel flag. One that ended is empty.
local function held_row(id)
  local row = redis.call(
    'HMGET', document(id), 'seq', 'lease', 'assigned_worker', 'status', 'cancel_requested'
  )
  return row[2] and row[2] ~= '' and row or nil
end

-- The leases of one worker.
local function held_by(worker)
  local rows = {}
  for _, id in ipairs(redis.call('HKEYS', prefix .. 'current_jobs:' .. worker)) do
    rows[#rows + 1] = held_row(id)
  end
  return rows
end
