-- Named statements. {rows} stands for as many "(?, …)" as there are rows, {marks} for "?, ?, …".

-- name: queues_by_name
-- The queues of a batch, with the settings and figures that admission needs.
SELECT name, id, max_retries, ttl, timeout, capacity, pending FROM queue
WHERE deleted = 0 AND name IN ({marks})

-- name: take_write_lock
UPDATE probe SET at = at WHERE id = 1

-- name: cancelled_lease
SELECT 1 FROM live WHERE seq = ? AND lease = ? AND cancel = 1

-- name: last_seq
SELECT seq FROM sqlite_sequence WHERE name = 'rec'

-- name: find_key
-- An expired key may be used again.
SELECT id, fingerprint FROM idempotency WHERE queue = ? AND key = ? AND expires_at > ?

-- name: put_key
INSERT OR REPLACE INTO idempotency (queue, key, seq, id, fingerprint, expires_at)
VALUES (?, ?, ?, ?, ?, ?)

-- name: unique_holder
SELECT r.id, r.seq, r.created_at, coalesce(l.state, r.state)
FROM unique_key AS u JOIN rec AS r ON r.seq = u.seq LEFT JOIN live AS l ON l.seq = u.seq
WHERE u.queue = ? AND u.key = ?

-- name: put_unique_key
INSERT OR REPLACE INTO unique_key (queue, key, seq) VALUES (?, ?, ?)

-- name: insert_records
-- (new) -> PENDING
INSERT INTO rec (seq, id, queue, type, payload, labels, more, priority, max_retries, ttl, timeout,
                 key, created_at)
VALUES {rows}

-- name: insert_live
INSERT INTO live (seq, queue, type, prio, ready, state, version, attempt, retry_count, max_retries,
                  timeout, run_at, expires_at, due, updated_at, reason)
VALUES {rows}

-- name: insert_keyed
-- As "insert_live", of jobs with a concurrency key.
INSERT INTO live (seq, queue, type, prio, ready, state, version, attempt, retry_count, max_retries,
                  timeout, run_at, expires_at, due, updated_at, reason, ckey)
VALUES {rows}

-- name: insert_events
INSERT INTO event (seq, version, from_state, to_state, reason, at, attempt, worker, detail,
                   started_at, due)
VALUES {rows}

-- name: queue_policies
SELECT id, name, deleted, more, retry_profile, retry_base, retry_max, retry_jitter FROM queue

-- name: claimable_queues
SELECT id, name, priority_weights, more,
       EXISTS (SELECT 1 FROM live INDEXED BY live_keyed WHERE queue = queue.id AND ready = 2)
FROM queue WHERE deleted = 0 AND {closed_until} <= ?1

-- name: limit_state
-- The number of held jobs of a queue, without those that this transaction has not counted yet, and the
-- state of its bucket.
SELECT q.assigned + q.running,
       coalesce((SELECT full_at FROM bucket AS b WHERE b.queue = q.id AND b.key = ''), 0)
FROM queue AS q WHERE q.id = ?

-- name: limit_state_of
-- As "limit_state", by the name of the queue.
SELECT q.assigned + q.running,
       coalesce((SELECT full_at FROM bucket AS b WHERE b.queue = q.id AND b.key = ''), 0)
FROM queue AS q WHERE q.name = ?

-- name: key_held
-- The number of held jobs of each key.
SELECT ckey, count(*) FROM live INDEXED BY live_key_held
WHERE queue = ? AND state IN (2, 3) AND ckey IS NOT NULL GROUP BY ckey

-- name: key_states
-- Of each key with claimable jobs of the queue ?1, or of the key ?4 alone: its held and its claimable
-- jobs, the latter counted up to ?2, and the state of its bucket.
WITH RECURSIVE q(id) AS (
    SELECT id FROM queue WHERE name = ?1 AND deleted = 0
), waiting(ckey) AS (
    SELECT (SELECT min(ckey) FROM live INDEXED BY live_by_key
            WHERE queue = (SELECT id FROM q) AND ready = 2 AND ckey >= coalesce(?4, ''))
    UNION ALL
    SELECT (SELECT min(l.ckey) FROM live AS l INDEXED BY live_by_key
            WHERE l.queue = (SELECT id FROM q) AND l.ready = 2 AND l.ckey > waiting.ckey)
    FROM waiting WHERE waiting.ckey IS NOT NULL AND ?4 IS NULL)
SELECT w.ckey,
       (SELECT count(*) FROM live INDEXED BY live_key_held
        WHERE queue = (SELECT id FROM q) AND state IN (2, 3) AND ckey IS NOT NULL AND ckey = w.ckey),
       (SELECT count(*) FROM (SELECT 1 FROM live INDEXED BY live_by_key
        WHERE queue = (SELECT id FROM q) AND ckey = w.ckey AND ready = 2 LIMIT ?2)),
       coalesce((SELECT full_at FROM bucket WHERE queue = (SELECT id FROM q) AND key = w.ckey), 0)
FROM waiting AS w WHERE w.ckey IS NOT NULL AND w.ckey = coalesce(?4, w.ckey) LIMIT ?3

-- name: lines
-- The first job of each type and priority, of jobs without a key: up to ?2 of them. It steps from each
-- of them to the next one in the index.
WITH RECURSIVE line(seq) AS (
    SELECT (SELECT l.seq FROM live AS l INDEXED BY live_ready WHERE l.queue = ?1 AND l.ready = 1
            ORDER BY l.type, l.prio, l.seq LIMIT 1)
    UNION ALL
    SELECT (SELECT n.seq FROM live AS n INDEXED BY live_ready
            WHERE n.queue = ?1 AND n.ready = 1 AND (n.type, n.prio) > (l.type, l.prio)
            ORDER BY n.type, n.prio, n.seq LIMIT 1)
    FROM line CROSS JOIN live AS l ON l.seq = line.seq)
SELECT NULL, l.type, l.prio, l.seq, 0 FROM line CROSS JOIN live AS l ON l.seq = line.seq LIMIT ?2

-- name: key_lines
-- The same of each key, type and priority, after the key ?3, with the state of the key's bucket.
WITH RECURSIVE line(seq) AS (
    SELECT (SELECT l.seq FROM live AS l INDEXED BY live_by_key
            WHERE l.queue = ?1 AND l.ready = 2 AND l.ckey > ?3
            ORDER BY l.ckey, l.type, l.prio, l.seq LIMIT 1)
    UNION ALL
    SELECT (SELECT n.seq FROM live AS n INDEXED BY live_by_key
            WHERE n.queue = ?1 AND n.ready = 2 AND (n.ckey, n.type, n.prio) > (l.ckey, l.type, l.prio)
            ORDER BY n.ckey, n.type, n.prio, n.seq LIMIT 1)
    FROM line CROSS JOIN live AS l ON l.seq = line.seq)
SELECT l.ckey, l.type, l.prio, l.seq,
       coalesce((SELECT b.full_at FROM bucket AS b WHERE b.queue = ?1 AND b.key = l.ckey), 0)
FROM line CROSS JOIN live AS l ON l.seq = line.seq LIMIT ?2

-- name: jobs_of_line
-- The next jobs of a line from ?4 on, without expired jobs.
{claimable_columns}
FROM live AS l INDEXED BY live_ready CROSS JOIN rec AS r ON r.seq = l.seq
WHERE l.queue = ?1 AND l.type = ?2 AND l.ready = 1 AND l.prio = ?3 AND l.seq >= ?4
  AND (l.expires_at IS NULL OR l.expires_at > ?5)
ORDER BY l.seq LIMIT ?6

-- name: jobs_of_key_line
-- The same of a key ?7.
{claimable_columns}
FROM live AS l INDEXED BY live_by_key CROSS JOIN rec AS r ON r.seq = l.seq
WHERE l.queue = ?1 AND l.ckey = ?7 AND l.type = ?2 AND l.ready = 2 AND l.prio = ?3 AND l.seq >= ?4
  AND (l.expires_at IS NULL OR l.expires_at > ?5)
ORDER BY l.seq LIMIT ?6

-- name: expire_buckets
DELETE FROM bucket WHERE full_at <= ?

-- name: put_bucket
INSERT OR REPLACE INTO bucket (queue, key, full_at) VALUES (?, ?, ?)

-- name: types_of
-- A fragment: the types of a queue's claimable jobs. It steps from each type to the next one in
-- the index.
WITH RECURSIVE waiting(type) AS (
    SELECT min(type) FROM live INDEXED BY live_ready WHERE queue = ?1 AND ready = 1
    UNION ALL
    SELECT (SELECT min(l.type) FROM live AS l INDEXED BY live_ready
            WHERE l.queue = ?1 AND l.ready = 1 AND l.type > waiting.type)
    FROM waiting WHERE waiting.type IS NOT NULL)

-- name: ready_types
{types_of} SELECT type FROM waiting WHERE type IS NOT NULL LIMIT ?2

-- name: waiting_types
-- The number of jobs of each type, counted up to a limit.
{types_of}
SELECT (SELECT name FROM queue WHERE id = ?1), w.type, (SELECT count(*) FROM (
    SELECT 1 FROM live INDEXED BY live_ready
    WHERE queue = ?1 AND type = w.type AND ready = 1 LIMIT ?2))
FROM waiting AS w WHERE w.type IS NOT NULL

-- name: claimable_columns
-- A fragment: the columns of a job that a claim reads.
SELECT l.prio, l.seq, l.queue, l.version, l.attempt, l.retry_count, l.max_retries, l.timeout,
       l.expires_at, r.id, l.type, r.payload, r.labels, r.more, r.priority, r.created_at, l.deaths

-- name: claimable
-- The next jobs of one type in claim order, without expired jobs, which the sweeper ends.
{claimable_columns}
FROM live AS l INDEXED BY live_ready CROSS JOIN rec AS r ON r.seq = l.seq
WHERE l.queue = ? AND l.type = ? AND l.ready = 1 AND l.prio BETWEEN ? AND ?
  AND (l.expires_at IS NULL OR l.expires_at > ?)
ORDER BY l.prio, l.seq LIMIT ?

-- name: claimable_seqs
-- The same for several types: one SELECT for each type. SQLite merges them only up to the limit.
SELECT prio, seq FROM live INDEXED BY live_ready
WHERE queue = ?1 AND type = {mark} AND ready = 1 AND prio BETWEEN ?2 AND ?3
  AND (expires_at IS NULL OR expires_at > ?4)

-- name: claimable_rows
{claimable_columns}
FROM live AS l CROSS JOIN rec AS r ON r.seq = l.seq WHERE l.seq IN ({marks})

-- name: assign
-- PENDING -> ASSIGNED. Rows: seq, lease, worker, due, now.
UPDATE live SET state = 2, ready = 0, attempt = attempt + 1, version = version + 1,
                reason = 'ASSIGNED', lease = v.column2, worker = v.column3, due = v.column4,
                updated_at = v.column5
FROM (VALUES {rows}) AS v WHERE live.seq = v.column1

-- name: lock_live
-- The columns that the lifecycle needs. The transaction has the write lock already.
SELECT l.seq, l.state, l.version, l.attempt, l.retry_count, l.max_retries, l.lease, l.worker,
       l.cancel, l.deaths, l.timeout, l.run_at, l.expires_at, l.started_at, l.due, l.queue, r.id,
       l.error, l.reason
FROM live AS l CROSS JOIN rec AS r ON r.seq = l.seq WHERE l.seq IN ({marks})

-- name: lock_ended
SELECT seq, state, version, attempt, retry_count, max_retries, NULL, worker,
       cancel, 0, timeout, run_at, NULL, started_at, NULL, queue, id, error, reason
FROM rec WHERE seq IN ({marks}) AND state IS NOT NULL

-- name: update_live
-- ready is doubled for a job with a concurrency key.
UPDATE live SET state = ?, ready = ? * (1 + (ckey IS NOT NULL)), version = ?, retry_count = ?, lease = ?, worker = ?,
                cancel = ?, deaths = ?, run_at = ?, expires_at = ?, started_at = ?, due = ?,
                error = ?, reason = ?, updated_at = ?
WHERE seq = ?

-- name: start_live
-- ASSIGNED -> RUNNING. Rows: seq, version, started_at, due, now.
UPDATE live SET state = 3, reason = 'STARTED', expires_at = NULL, version = v.column2,
                started_at = v.column3, due = v.column4, updated_at = v.column5
FROM (VALUES {rows}) AS v WHERE live.seq = v.column1

-- name: end_live
DELETE FROM live WHERE seq IN ({marks})

-- name: end_records
-- -> DONE or DEAD_LETTERED.
UPDATE rec SET state = v.column2, version = v.column3, attempt = v.column4,
               retry_count = v.column5, worker = v.column6, run_at = v.column7,
               cancel = v.column8, started_at = v.column9, completed_at = v.column10,
               result = v.column11, error = v.column12, reason = v.column13
FROM (VALUES {rows}) AS v WHERE rec.seq = v.column1

-- name: revive_live
-- DEAD_LETTERED -> PENDING: the job gets a live row again.
INSERT INTO live (seq, queue, type, prio, ready, state, version, attempt, retry_count, max_retries,
                  timeout, run_at, expires_at, due, started_at, updated_at, reason, ckey)
SELECT seq, queue, type, 9 - priority, CASE WHEN ckey IS NULL THEN 1 ELSE 2 END, ?1, ?2, attempt, 0,
       max_retries, timeout, NULL, NULL, NULL, started_at, ?3, ?4, ckey
FROM (SELECT *, json_extract(more, '$.concurrency_key') AS ckey FROM rec WHERE seq = ?5)

-- name: revive_record
UPDATE rec SET state = NULL, completed_at = NULL, result = NULL, error = NULL, worker = NULL
WHERE seq = ?

-- name: count
-- Add what a transaction changed to a queue's figures.
UPDATE queue SET pending = pending + ?, assigned = assigned + ?, running = running + ?,
                 done = done + ?, failed = failed + ?, dead_lettered = dead_lettered + ?,
                 succeeded_total = succeeded_total + ?, failed_total = failed_total + ?,
                 run_seconds = run_seconds + ?, timed_total = timed_total + ?
WHERE id = ?

-- name: request_cancel
UPDATE live SET cancel = 1 WHERE seq = ? AND state = 3 RETURNING seq, lease, worker, state, cancel

-- name: promote
-- Delayed jobs whose time has come become claimable; no transition, no version.
UPDATE live SET ready = CASE WHEN ckey IS NULL THEN 1 ELSE 2 END, due = expires_at WHERE seq IN (
    SELECT seq FROM live INDEXED BY live_due
    WHERE state IN (1, 5) AND due IS NOT NULL AND due <= ? AND state = 1 AND ready = 0
      AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY due LIMIT ?)

-- name: due_waiting
-- The last column: only waiting for run_at, to be promoted.
SELECT seq, state, version, lease,
       state = 1 AND ready = 0 AND (expires_at IS NULL OR expires_at > ?1)
FROM live INDEXED BY live_due
WHERE state IN (1, 5) AND due IS NOT NULL AND due <= ?1
ORDER BY due LIMIT ?2

-- name: due_held
SELECT seq, state, version, lease, 0 FROM live INDEXED BY live_held
WHERE state IN (2, 3) AND due <= ? LIMIT ?

-- name: next_waiting
SELECT min(due) FROM live INDEXED BY live_due WHERE state IN (1, 5) AND due IS NOT NULL AND due > ?

-- name: next_held
SELECT min(due) FROM live INDEXED BY live_held WHERE state IN (2, 3) AND due > ?

-- name: expired_key
SELECT 1 FROM idempotency WHERE expires_at <= ? LIMIT 1

-- name: expire_keys
DELETE FROM idempotency WHERE (queue, key) IN (
    SELECT queue, key FROM idempotency WHERE expires_at <= ? LIMIT ?)

-- name: job_columns
SELECT r.id, r.seq, coalesce(l.state, r.state), coalesce(l.version, r.version),
       coalesce(l.attempt, r.attempt), coalesce(l.retry_count, r.retry_count), r.created_at,
       CASE WHEN l.seq IS NULL THEN r.completed_at ELSE l.updated_at END, l.expires_at,
       CASE WHEN l.seq IS NULL THEN r.worker ELSE l.worker END, coalesce(l.cancel, r.cancel),
       CASE WHEN l.seq IS NULL THEN r.started_at ELSE l.started_at END, r.completed_at,
       CASE WHEN l.state = 5 THEN l.due END, r.result,
       CASE WHEN l.seq IS NULL THEN r.error ELSE l.error END,
       CASE WHEN l.seq IS NULL THEN r.reason ELSE l.reason END,
       CASE WHEN l.state = 3 THEN (
            SELECT json_array(value, text, at) FROM progress WHERE lease = l.lease) END,
       q.name, r.type, r.payload, r.priority, r.max_retries, r.ttl, r.timeout,
       CASE WHEN l.seq IS NULL THEN r.run_at ELSE l.run_at END, r.key, r.labels, r.more

-- name: seq_of
-- SQLite reads only the index, because a row with a large payload is slow to read.
SELECT seq FROM rec WHERE id = ?

-- name: live_versions
SELECT seq, version FROM live WHERE seq IN (SELECT value FROM json_each(?))

-- name: describe
SELECT r.seq, r.version, r.id, q.name, r.type, r.reason, substr(r.error, 1, ?1), r.completed_at
FROM rec AS r JOIN queue AS q ON q.id = r.queue
WHERE r.seq IN (SELECT value FROM json_each(?2)) AND r.state = 6 ORDER BY r.seq DESC

-- name: history
SELECT r.id, e.version, e.from_state, e.to_state, e.reason, e.at, e.attempt, e.worker, e.detail,
       q.name
FROM rec AS r JOIN event AS e ON e.seq = r.seq JOIN queue AS q ON q.id = r.queue
WHERE r.id = ?1 AND e.version < coalesce(?2, e.version + 1)
ORDER BY e.version DESC LIMIT ?3

-- name: events_after
SELECT e.position, r.id, e.version, e.from_state, e.to_state, e.reason, e.at, e.attempt, e.worker,
       e.detail, q.name
FROM event AS e CROSS JOIN rec AS r ON r.seq = e.seq JOIN queue AS q ON q.id = r.queue
WHERE e.position > ? ORDER BY e.position LIMIT ?

-- name: old_done
-- The oldest DONE jobs. A job whose events the stream has not published yet stays, and so may jobs
-- after it until then. ?1 before, ?2 how many, ?3 after, ?4 names of queues, ?5 1: all but these
SELECT seq, queue FROM (
    SELECT seq, queue FROM rec INDEXED BY rec_done
    WHERE state = 4 AND completed_at < ?1 AND completed_at >= ?3
      AND (queue IN (SELECT id FROM queue WHERE name IN (SELECT value FROM json_each(?4)))) <> ?5
    ORDER BY completed_at LIMIT ?2) AS old
WHERE NOT EXISTS (SELECT 1 FROM stream WHERE id = 1)
   OR (SELECT max(position) FROM event WHERE event.seq = old.seq)
      <= (SELECT event FROM stream WHERE id = 1)

-- name: removable
SELECT r.seq, r.queue, r.key, coalesce(l.state, r.state), coalesce(l.version, r.version)
FROM rec AS r LEFT JOIN live AS l ON l.seq = r.seq WHERE r.id = ?

-- name: passed
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM stream WHERE id = 1)
    OR (SELECT max(position) FROM event WHERE seq = ?) <= (SELECT event FROM stream WHERE id = 1)

-- name: changes
-- Events with all that a rebuild of their jobs needs. ?1 position, ?2 limit, ?3 now
SELECT e.position, r.id, e.version, e.from_state, e.to_state, e.reason, e.at, e.attempt, e.worker,
       e.detail, q.name,
       CASE WHEN e.to_state = 5 THEN e.started_at
            WHEN e.to_state IN (4, 6) AND r.version = e.version THEN r.started_at END,
       CASE WHEN e.to_state = 5 THEN coalesce(e.due, (
            SELECT l.due FROM live AS l WHERE l.seq = e.seq AND l.version = e.version)) END,
       CASE WHEN e.to_state IN (4, 5, 6) THEN (
            SELECT count(*) FROM event AS b WHERE b.seq = e.seq AND b.version < e.version
            AND b.reason = 'RETRY_DUE' AND b.version > coalesce((
                SELECT max(m.version) FROM event AS m WHERE m.seq = e.seq
                AND m.version < e.version AND m.reason = 'MANUAL_RETRY'), 0)) END,
       r.seq, r.created_at,
       CASE WHEN e.version = 1 AND r.key IS NOT NULL THEN (
            SELECT k.expires_at FROM idempotency AS k
            WHERE k.queue = r.queue AND k.key = r.key AND k.seq = r.seq AND k.expires_at > ?3) END,
       CASE WHEN e.to_state = 4 THEN r.result END,
       CASE WHEN e.to_state = 6 AND r.version = e.version THEN r.cancel ELSE 0 END, r.type,
       CASE WHEN e.version = 1 OR e.to_state = 6 THEN r.payload END, r.priority, r.max_retries,
       r.ttl, r.timeout, e.due, r.key, CASE WHEN e.version = 1 THEN r.labels END, r.more
FROM event AS e CROSS JOIN rec AS r ON r.seq = e.seq JOIN queue AS q ON q.id = r.queue
WHERE e.position > ?1 ORDER BY e.position LIMIT ?2

-- name: outbox_after
SELECT after, number, kind, at, body FROM outbox
WHERE after > ?1 OR after = ?1 AND number > ?2 ORDER BY number LIMIT ?3

-- name: put_queue
-- Adds a change of a queue or schedule. Writes nothing if there is no stream. ?1 kind, ?2 now, ?3 body
INSERT INTO outbox (after, kind, at, body)
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0), ?1, ?2, ?3
WHERE EXISTS (SELECT 1 FROM stream WHERE id = 1)

-- name: put_job
-- The same for a job. ?1 kind, ?2 now, ?3 key_freed as JSON, ?4 seq
INSERT INTO outbox (after, kind, at, body)
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0), ?1, ?2,
       json_object('job_id',
           lower(substr(hex(r.id), 1, 8) || '-' || substr(hex(r.id), 9, 4) || '-' ||
                 substr(hex(r.id), 13, 4) || '-' || substr(hex(r.id), 17, 4) || '-' ||
                 substr(hex(r.id), 21)),
           'queue', q.name, 'version', coalesce(l.version, r.version), 'key_freed', json(?3))
FROM rec AS r LEFT JOIN live AS l ON l.seq = r.seq JOIN queue AS q ON q.id = r.queue
WHERE r.seq = ?4 AND EXISTS (SELECT 1 FROM stream WHERE id = 1)

-- name: events_behind
SELECT count(*), min(at) FROM (SELECT at FROM event WHERE position > ? LIMIT 100000)

-- name: entries_behind
SELECT count(*), min(at) FROM outbox WHERE after > ?1 OR after = ?1 AND number > ?2

-- name: create_queue
-- The row of a deleted queue is used again: its jobs stay, its settings are new, from ?4 on.
INSERT INTO queue (name, paused, created_at, {settings})
VALUES (?1, ?2, ?3, {settings_from_4})
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, created_at = excluded.created_at,
    deleted = 0, ({settings}) = ({new_settings})
WHERE deleted = 1

-- name: update_queue
UPDATE queue SET ({settings}) = ({settings_from_2}) WHERE name = ?1

-- name: restore_queue
INSERT INTO queue (name, paused, created_at, deleted, succeeded_total, failed_total, run_seconds,
                   timed_total, {settings})
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, {settings_from_9}) RETURNING id

-- name: raise_sequence
-- New numbers are higher than the highest number that was ever used.
UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?

-- name: restore_mark
INSERT INTO stream
SELECT 1, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0), 0

-- name: stats
SELECT name, paused, created_at, {settings}, pending, assigned, running, done, failed, dead_lettered, succeeded_total, failed_total, run_seconds, timed_total
FROM queue WHERE deleted = 0 AND (? IS NULL OR name = ?) ORDER BY name

-- name: set_worker_status
-- A worker that is STOPPING keeps this status.
UPDATE worker SET status = ?1
WHERE id = ?2 AND (?1 IN ('STOPPING', 'OFFLINE') OR status IN ('ONLINE', 'DRAINING'))

-- name: register_worker
-- A reconnect of the same incarnation does not undo an operator's drain.
INSERT INTO worker (id, incarnation, hostname, pid, concurrency, queues, version, link, types,
                    owner, status, registered_at, last_seen)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'ONLINE', ?, ?)
ON CONFLICT (id) DO UPDATE SET incarnation = excluded.incarnation, hostname = excluded.hostname,
    pid = excluded.pid, concurrency = excluded.concurrency, queues = excluded.queues,
    version = excluded.version, link = excluded.link, types = excluded.types,
    owner = excluded.owner, registered_at = excluded.registered_at, last_seen = excluded.last_seen,
    overrun = 0, breakers = NULL,
    status = CASE WHEN worker.incarnation = excluded.incarnation AND worker.status <> 'OFFLINE'
                  THEN worker.status ELSE 'ONLINE' END

-- name: beat
UPDATE worker SET last_seen = ?1, overrun = coalesce(?2, overrun) WHERE id = ?3

-- name: set_breakers
UPDATE worker SET breakers = ? WHERE id = ? AND incarnation = ?

-- name: registration
SELECT incarnation, owner, status FROM worker WHERE id = ?

-- name: forget_offline
-- The owner's OFFLINE workers, except one worker.
DELETE FROM worker AS w WHERE w.owner = ?1 AND w.owner <> '' AND w.id <> ?2 AND w.status = 'OFFLINE'
AND NOT EXISTS (
    SELECT 1 FROM live INDEXED BY live_held WHERE state IN (2, 3) AND worker = w.id)

-- name: count_owned
SELECT count(*) FROM worker WHERE owner = ?1 AND owner <> '' AND id <> ?2

-- name: held
SELECT seq, lease, worker, state, cancel FROM live INDEXED BY live_held
WHERE state IN (2, 3) AND (?1 IS NULL OR worker = ?1)

-- name: workers
-- ?1: 0 leaves out the names of queues and types
SELECT w.id, w.incarnation, w.hostname, w.pid, w.concurrency, iif(?1, w.queues, '[]'), w.version,
       w.link, iif(?1, w.types, NULL), w.owner, w.status, w.registered_at, w.last_seen,
       (SELECT count(*) FROM live INDEXED BY live_held WHERE state IN (2, 3) AND worker = w.id),
       w.overrun, w.breakers
FROM worker AS w ORDER BY w.id

-- name: worker_infos
SELECT id, incarnation, hostname, pid, concurrency, queues, version, link, types, owner
FROM worker WHERE id IN ({marks})

-- name: leader
SELECT holder, epoch, until FROM leader WHERE id = 1

-- name: take_lead
UPDATE leader SET holder = ?1, epoch = ?2, until = ?3, name = ?4,
                  since = CASE WHEN named = ?2 THEN since ELSE ?5 END, named = ?2 WHERE id = 1

-- name: leading
SELECT CASE WHEN named = epoch THEN name ELSE '' END, epoch,
       CASE WHEN named = epoch THEN since ELSE 0 END
FROM leader WHERE id = 1 AND holder IS NOT NULL AND until > ?

-- name: resign
UPDATE leader SET holder = NULL, until = 0 WHERE id = 1 AND holder = ? AND epoch = ?

-- name: term_stands
SELECT 1 FROM leader WHERE id = 1 AND holder = ? AND epoch = ? AND until > ?

-- name: control
SELECT changes FROM control WHERE id = 1

-- name: tell_control
UPDATE control SET changes = changes + 1 WHERE id = 1

-- name: keep_progress
INSERT OR REPLACE INTO progress (lease, seq, value, text, at) VALUES (?, ?, ?, ?, ?)

-- name: forget_progress
-- Progress of attempts that have ended.
DELETE FROM progress WHERE NOT EXISTS (
    SELECT 1 FROM live WHERE live.seq = progress.seq AND live.lease = progress.lease)

-- name: due_schedules
SELECT name FROM schedule WHERE due_at <= ? ORDER BY due_at, name

-- name: next_schedule
SELECT min(due_at) FROM schedule WHERE due_at > ?

-- name: get_schedules
SELECT name, revision, definition, state, payload FROM schedule
WHERE name IN (SELECT value FROM json_each(?)) ORDER BY name

-- name: every_schedule
SELECT name, revision, definition, state, payload FROM schedule

-- name: list_schedules
-- Payloads are not read: they may be large.
SELECT name, revision, definition, state, x'' FROM schedule WHERE name > ? ORDER BY name LIMIT ?

-- name: create_schedule
INSERT INTO schedule (name, revision, due_at, payload, definition, state)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: change_schedule
UPDATE schedule SET revision = ?2, due_at = ?3, payload = ?4, definition = ?5, state = ?6
WHERE name = ?1 AND revision = ?2 - 1

-- name: advance_schedule
UPDATE schedule SET revision = ?2, due_at = ?3, state = ?4 WHERE name = ?1 AND revision = ?2 - 1

-- name: remove_schedule
DELETE FROM schedule WHERE name = ? RETURNING name, revision, definition, state, payload
