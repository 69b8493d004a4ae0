-- What many jobs share is written once: a row for a step or an end of a batch of jobs on their first
-- attempt. A row lies within a window of 1,024 numbers (seq >> 10), so that the rows which may name
-- a job are a short stretch of an index. Written from layout 2 on (see "instance" below).

-- A step of many jobs: 1 PENDING, 2 ASSIGNED or 3 RUNNING, which is also the version that it makes
-- and the number of its reason.
CREATE TABLE job_steps (
    lo     bigint NOT NULL, -- first and last number
    hi     bigint NOT NULL,
    xid    bigint NOT NULL, -- as in job_event
    at     float8 NOT NULL,
    queue  int NOT NULL,
    worker int,             -- NULL with PENDING
    step   smallint NOT NULL CHECK (step BETWEEN 1 AND 3),
    jobs   bit varying,     -- a bit for each number from lo on; NULL: all are meant
    CHECK (lo <= hi AND lo >> 10 = hi >> 10),
    CHECK (length(jobs) = hi - lo + 1)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);
CREATE INDEX job_steps_lo ON job_steps (lo, hi);
CREATE INDEX job_steps_xid ON job_steps (xid);

-- A report: the end of many jobs that are DONE, their leases, starts and results by the same place.
-- Such a job has had one attempt, and no row in job_ended.
CREATE TABLE job_done (
    lo         bigint NOT NULL,
    hi         bigint NOT NULL,
    xid        bigint NOT NULL,
    at         float8 NOT NULL,     -- completed_at
    base       bigint,              -- where leases is NULL: a job's lease is base + seq
    queue      int NOT NULL,
    worker     int NOT NULL,
    from_state smallint NOT NULL,   -- 2: this is RUNNING and DONE, versions 3 and 4; 3: DONE alone
    offs       smallint[] NOT NULL, -- seq & 1023 of each job
    leases     bigint[],
    began      float8[] NOT NULL,   -- started_at
    results    bytea[] NOT NULL,
    CHECK (lo <= hi AND lo >> 10 = hi >> 10),
    CHECK ((base IS NULL) <> (leases IS NULL))
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_insert_scale_factor = 0.5);
ALTER TABLE job_done ALTER offs SET STORAGE main, ALTER leases SET STORAGE main,
                     ALTER began SET STORAGE main, ALTER results SET STORAGE main;
-- By windows first: a list of jobs by number is sorted within each, and ends where it is full.
CREATE INDEX job_done_lo ON job_done ((lo >> 10), lo, hi);
CREATE INDEX job_done_queue ON job_done (queue, (lo >> 10));
CREATE INDEX job_done_at ON job_done (at);
CREATE INDEX job_done_xid ON job_done (xid);

CREATE OR REPLACE FUNCTION job_event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Retention and the deletion of a job say what they are about; nothing else may. A deleted job
    -- is taken out of the row that it shares.
    IF TG_OP = 'DELETE' AND current_setting('jobqueue.retention', true) = 'on'
       OR TG_OP = 'UPDATE' AND TG_TABLE_NAME = 'job_done'
          AND current_setting('jobqueue.retention', true) = 'on'
       OR TG_OP = 'UPDATE' AND current_setting('jobqueue.renumbering', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'job events are immutable: % refused', TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER job_steps_is_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON job_steps
    FOR EACH STATEMENT EXECUTE FUNCTION job_event_is_immutable();
CREATE TRIGGER job_done_is_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON job_done
    FOR EACH STATEMENT EXECUTE FUNCTION job_event_is_immutable();

-- What these rows say, job by job; "lo" tells the row.
CREATE VIEW batch_event AS
SELECT s.lo, n AS seq, s.xid, s.at, s.step::int AS version, least(s.step - 1, 1) AS attempt,
       s.worker, CASE WHEN s.step > 1 THEN s.step - 1 END::smallint AS from_state,
       s.step AS to_state, s.step AS reason, s.hi
FROM job_steps AS s CROSS JOIN generate_series(s.lo, s.hi) AS n
WHERE s.jobs IS NULL OR get_bit(s.jobs, (n - s.lo)::int) = 1
UNION ALL
SELECT d.lo, (d.lo >> 10 << 10) + o, d.xid, d.at, v, 1, d.worker, (v - 1)::smallint, v::smallint,
       v::smallint, d.hi
FROM job_done AS d CROSS JOIN unnest(d.offs) AS o CROSS JOIN generate_series(d.from_state + 1, 4) AS v;

CREATE VIEW batch_end AS
SELECT d.lo, (d.lo >> 10 << 10) + t.off AS seq, d.at AS completed_at, t.began AS started_at,
       NULL::float8 AS run_at, coalesce(t.lease, d.base + (d.lo >> 10 << 10) + t.off) AS lease,
       d.queue, 4 AS version, 1 AS attempt, 0 AS retry_count, d.worker, 4::smallint AS state,
       4::smallint AS reason, false AS cancel, t.result, NULL::text AS error
FROM job_done AS d CROSS JOIN unnest(d.offs, d.leases, d.began, d.results) AS t(off, lease, began, result);

-- All events of a job, however they were written; of rows for many jobs those whose lo is at least
-- "first". These three are written so that the planner can look into them.
CREATE FUNCTION job_events_of(job bigint, first bigint)
RETURNS TABLE (seq bigint, xid bigint, at float8, version int, attempt int, worker int,
               from_state smallint, to_state smallint, reason smallint, detail text,
               started_at float8, due float8)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT e.seq, e.xid, e.at, e.version, e.attempt, e.worker, e.from_state, e.to_state, e.reason,
           e.detail, e.started_at, e.due
    FROM job_event AS e WHERE e.seq = $1
    UNION ALL
    SELECT $1, s.xid, s.at, s.step::int, least(s.step - 1, 1), s.worker,
           CASE WHEN s.step > 1 THEN s.step - 1 END::smallint, s.step, s.step, NULL::text,
           NULL::float8, NULL::float8
    FROM job_steps AS s
    WHERE s.lo BETWEEN $2 AND $1 AND s.hi >= $1
      AND (s.jobs IS NULL OR get_bit(s.jobs, ($1 - s.lo)::int) = 1)
    UNION ALL
    SELECT $1, d.xid, d.at, v, 1, d.worker, (v - 1)::smallint, v::smallint, v::smallint, NULL::text,
           NULL::float8, NULL::float8
    FROM job_done AS d CROSS JOIN generate_series(d.from_state + 1, 4) AS v
    WHERE d.lo >> 10 = $1 >> 10 AND d.lo BETWEEN $2 AND $1 AND d.hi >= $1
      AND ($1 & 1023)::smallint = ANY (d.offs)
$$;

-- The end of a job that ended in a batch; and of any job.
CREATE FUNCTION job_done_of(job bigint)
RETURNS TABLE (completed_at float8, started_at float8, run_at float8, lease bigint, queue int,
               version int, attempt int, retry_count int, worker int, state smallint,
               reason smallint, cancel boolean, result bytea, error text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT d.at, d.began[p], (SELECT r.run_at FROM job_record AS r WHERE r.seq = $1),
           coalesce(d.leases[p], d.base + $1), d.queue, 4, 1, 0, d.worker, 4::smallint, 4::smallint,
           false, d.results[p], NULL::text
    FROM job_done AS d
    CROSS JOIN LATERAL (SELECT array_position(d.offs, ($1 & 1023)::smallint)) AS x(p)
    WHERE d.lo >> 10 = $1 >> 10 AND d.lo <= $1 AND d.hi >= $1 AND p IS NOT NULL
$$;

CREATE FUNCTION job_end_of(job bigint)
RETURNS TABLE (completed_at float8, started_at float8, run_at float8, lease bigint, queue int,
               version int, attempt int, retry_count int, worker int, state smallint,
               reason smallint, cancel boolean, result bytea, error text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT e.completed_at, e.started_at, e.run_at, e.lease, e.queue, e.version, e.attempt,
           e.retry_count, e.worker, e.state, e.reason, e.cancel, e.result, e.error
    FROM job_ended AS e WHERE e.seq = $1
    UNION ALL
    SELECT * FROM job_done_of($1)
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
LEFT JOIN job_live l ON l.seq = r.seq
LEFT JOIN LATERAL job_end_of(r.seq) e ON true
JOIN queues q ON q.id = r.queue
JOIN state_name s ON s.state = coalesce(l.state, e.state)
JOIN reason_name n ON n.reason = coalesce(l.reason, e.reason)
LEFT JOIN worker_name w ON w.id = coalesce(l.worker, l.last_worker, e.worker);

CREATE OR REPLACE VIEW job_events AS
SELECT r.id AS job_id, e.version, f.name AS from_status, t.name AS to_status, n.name AS reason,
       to_timestamp(e.at) AS at, e.attempt, w.name AS worker_id, e.detail, q.name AS queue, e.seq
FROM job_record r
CROSS JOIN LATERAL job_events_of(r.seq, r.seq >> 10 << 10) e
JOIN queues q ON q.id = r.queue
LEFT JOIN state_name f ON f.state = e.from_state
JOIN state_name t ON t.state = e.to_state
JOIN reason_name n ON n.reason = e.reason
LEFT JOIN worker_name w ON w.id = e.worker;

-- What servers may write: 1 a row for each job, 2 these as well. A server says which layout it knows
-- when it connects. From "jq-ctl layout 2" on, one that knows less can neither write jobs nor lead
-- nor register workers: these rows are checked. Until then, nobody can write the new tables.
ALTER TABLE instance ADD COLUMN layout smallint NOT NULL DEFAULT 1;
ALTER TABLE queue_tally ADD COLUMN layout smallint NOT NULL
    DEFAULT coalesce(nullif(current_setting('jobqueue.layout', true), '')::smallint, 1);
ALTER TABLE leader ADD COLUMN layout smallint NOT NULL
    DEFAULT coalesce(nullif(current_setting('jobqueue.layout', true), '')::smallint, 1);
ALTER TABLE workers ADD COLUMN layout smallint NOT NULL
    DEFAULT coalesce(nullif(current_setting('jobqueue.layout', true), '')::smallint, 1);

CREATE FUNCTION layout_is_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- The writer reads the layout again and repeats its statement.
    RAISE EXCEPTION 'the layout of this database has no %', TG_TABLE_NAME
        USING ERRCODE = 'serialization_failure';
END $$;
CREATE TRIGGER closed BEFORE INSERT ON job_steps
    FOR EACH STATEMENT EXECUTE FUNCTION layout_is_closed();
CREATE TRIGGER closed BEFORE INSERT ON job_done
    FOR EACH STATEMENT EXECUTE FUNCTION layout_is_closed();
