-- Rows for many plain jobs, from layout 3 on (see V14). A plain job is on its first attempt, and no
-- caller has changed it alone. It is in a range of job_ready (PENDING, version 1), or has its bit in a row
-- of job_held (ASSIGNED, version 2), or it has left both and has a row of job_live, or is in one of
-- job_done. Each row lies within a window of 1,024 numbers (seq >> 10).

-- A range: jobs with consecutive numbers that may be claimed. A claim takes the lowest numbers.
CREATE TABLE job_ready (
    hi         bigint PRIMARY KEY, -- the last number, which names the row: new pieces of a cut range end lower
    nxt        bigint NOT NULL,    -- the first number
    kind       bigint NOT NULL,    -- the number of the type, as in job_live
    expires_at float8,             -- of all jobs of the range; NULL: never
    queue      int NOT NULL,
    prio       smallint NOT NULL,  -- 9 - priority
    CHECK (nxt <= hi AND nxt >> 10 = hi >> 10)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX job_ready_head ON job_ready (queue, prio, kind, hi);
CREATE INDEX job_ready_expiry ON job_ready (expires_at) WHERE expires_at IS NOT NULL;

-- A held row: the jobs of one window that one claim assigned to one worker.
CREATE TABLE job_held (
    base   bigint PRIMARY KEY,  -- random; the lease of a job is base + seq
    lo     bigint NOT NULL,     -- the first number of the window
    at     float8 NOT NULL,     -- when the jobs were assigned
    due    float8 NOT NULL,     -- when the assignment times out
    queue  int NOT NULL,
    worker int NOT NULL,
    open   bit(1024) NOT NULL,  -- a bit for each number of the window: 1 = still held here
    CHECK (lo & 1023 = 0)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX job_held_lo ON job_held (lo);
CREATE INDEX job_held_worker ON job_held (worker, lo);
CREATE INDEX job_held_due ON job_held (due);

CREATE TRIGGER closed BEFORE INSERT ON job_ready
    FOR EACH STATEMENT EXECUTE FUNCTION layout_is_closed();
CREATE TRIGGER closed BEFORE INSERT ON job_held
    FOR EACH STATEMENT EXECUTE FUNCTION layout_is_closed();

-- The jobs of these rows, a row for each.
CREATE VIEW ready_job AS
SELECT k.hi, n AS seq, k.queue, k.kind, k.prio, k.expires_at
FROM job_ready AS k CROSS JOIN generate_series(k.nxt, k.hi) AS n;

CREATE VIEW held_job AS
SELECT k.lo, k.lo + n AS seq, k.queue, k.worker, k.base + k.lo + n AS lease, k.at, k.due
FROM job_held AS k CROSS JOIN generate_series(0, 1023) AS n WHERE get_bit(k.open, n) = 1;

-- The state of a plain job that has not ended; below, of any job that has not ended. The planner can
-- inline both functions.
CREATE FUNCTION job_plain_of(job bigint)
RETURNS TABLE (seq bigint, queue int, state smallint, version int, attempt int, lease bigint,
               worker int, due float8, updated_at float8, expires_at float8)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT $1, k.queue, 1::smallint, 1, 0, NULL::bigint, NULL::int, k.expires_at, r.created_at,
           k.expires_at
    FROM (SELECT * FROM job_ready WHERE hi BETWEEN $1 AND ($1 | 1023) ORDER BY hi LIMIT 1) AS k
    JOIN job_record AS r ON r.seq = $1
    WHERE k.nxt <= $1
    UNION ALL
    SELECT $1, k.queue, 2::smallint, 2, 1, k.base + $1, k.worker, k.due, k.at, r.created_at + r.ttl
    FROM job_held AS k JOIN job_record AS r ON r.seq = $1
    WHERE k.lo = $1 >> 10 << 10 AND get_bit(k.open, ($1 & 1023)::int) = 1
$$;

CREATE FUNCTION job_live_of(job bigint)
RETURNS TABLE (seq bigint, queue int, state smallint, version int, attempt int, retry_count int,
               updated_at float8, expires_at float8, worker int, last_worker int, cancel boolean,
               started_at float8, wake_at float8, error text, reason smallint, lease bigint,
               run_at float8)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT l.seq, l.queue, l.state, l.version, l.attempt, l.retry_count, l.updated_at, l.expires_at,
           l.worker, l.last_worker, l.cancel, l.started_at, l.wake_at, l.error, l.reason, l.lease,
           l.run_at
    FROM job_live AS l WHERE l.seq = $1
    UNION ALL
    SELECT $1, p.queue, p.state, p.version, p.attempt, 0, p.updated_at, p.expires_at, p.worker,
           NULL::int, false, NULL::float8, NULL::float8, NULL::text, p.state, p.lease,
           (SELECT r.run_at FROM job_record AS r WHERE r.seq = $1)
    FROM job_plain_of($1) AS p
$$;

CREATE OR REPLACE VIEW jobs AS
SELECT r.id AS job_id, q.name AS queue, r.type, s.name AS status, r.priority,
       coalesce(l.attempt, e.attempt) AS attempt,
       coalesce(l.retry_count, e.retry_count) AS retry_count, r.max_retries,
       as_text(r.payload) AS payload, as_text(e.result) AS result,
       coalesce(l.error, e.error) AS error, n.name AS reason, w.name AS worker_id,
       to_timestamp(r.created_at) AS created_at,
       to_timestamp(coalesce(l.started_at, e.started_at)) AS started_at,
       to_timestamp(e.completed_at) AS completed_at,
       to_timestamp(CASE WHEN l.state = 5 THEN l.wake_at END) AS next_retry_at,
       to_timestamp(coalesce(l.run_at, e.run_at)) AS run_at,
       regexp_replace(r.key, E'^\x1f[^\x1f]*\x1f', '') AS idempotency_key, r.labels, r.seq,
       substring(r.key FROM E'^\x1f([^\x1f]+)\x1f') AS key_owner
FROM job_record r
LEFT JOIN LATERAL job_live_of(r.seq) l ON true
LEFT JOIN LATERAL job_end_of(r.seq) e ON true
JOIN queues q ON q.id = r.queue
JOIN state_name s ON s.state = coalesce(l.state, e.state)
JOIN reason_name n ON n.reason = coalesce(l.reason, e.reason)
LEFT JOIN worker_name w ON w.id = coalesce(l.worker, l.last_worker, e.worker);

CREATE OR REPLACE VIEW waiting_types AS
SELECT q.name AS queue, r.type, count(*) AS jobs, to_timestamp(min(r.created_at)) AS oldest
FROM (SELECT seq, queue FROM job_live WHERE ready > 0
      UNION ALL SELECT seq, queue FROM ready_job) AS l
JOIN job_record r ON r.seq = l.seq JOIN queues q ON q.id = l.queue
GROUP BY q.name, r.type;
