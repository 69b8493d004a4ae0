-- Insert finished jobs from seq $1 to $2 as the store leaves them: the record, the end and all four
-- events. The times are those of one job per millisecond, starting a day ago.

-- name: records
-- $3 queue
INSERT INTO job_record (seq, id, created_at, queue, max_retries, priority, type, payload)
OVERRIDING SYSTEM VALUE
SELECT n, gen_random_uuid(), extract(epoch FROM now())::float8 - 86400 + n * 1e-3, $3, 3, 0, 'noop',
       convert_to('{"n": ' || n || '}', 'UTF8')
FROM generate_series($1::bigint, $2::bigint) AS n

-- name: ends
-- $3 queue, $4 worker
INSERT INTO job_ended (seq, completed_at, started_at, lease, queue, version, attempt, retry_count,
                       worker, state, reason, cancel, result)
SELECT seq, created_at + 2e-3, created_at + 1e-3, seq, $3, 4, 1, 0, $4, 4, 4, false, '1'::bytea
FROM job_record WHERE seq BETWEEN $1 AND $2 ORDER BY seq

-- name: events
-- $3 worker
INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason)
SELECT r.seq, (SELECT pg_current_xact_id()::text::bigint), r.created_at + e.later, e.version,
       e.attempt, CASE WHEN e.version > 1 THEN $3::int END, e.from_state, e.to_state, e.reason
FROM job_record AS r
CROSS JOIN (VALUES (0.0, 1, 0, NULL::smallint, 1::smallint, 1::smallint), (5e-4, 2, 1, 1, 2, 2),
                   (1e-3, 3, 1, 2, 3, 3), (2e-3, 4, 1, 3, 4, 4))
     AS e(later, version, attempt, from_state, to_state, reason)
WHERE r.seq BETWEEN $1 AND $2 ORDER BY r.seq, e.version

-- name: tally
-- $1 jobs, $2 queue
INSERT INTO queue_tally (queue, done, succeeded, run_seconds, layout)
VALUES ($2, $1::bigint, $1::bigint, $1::bigint * 1e-3, 32767)

-- name: continue
-- $1: the next seq
SELECT setval(pg_get_serial_sequence('job_record', 'seq'), $1::bigint, false)
