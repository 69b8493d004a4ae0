-- The layout of the PostgreSQL store.
--
-- A wide record for each job, written at submit; a narrow live row while it is unfinished, which
-- carries everything that the scheduler looks at; a row about its end; events. All but the live
-- rows are only ever appended, so that history leaves nothing behind that has to be cleaned up.
-- Inside, a job is its seq; the UUID is its outside name. Read with the views at the end.
--
-- Times are seconds since the epoch, states and reasons small numbers; the views spell them out.

CREATE TABLE instance (
    -- Tells this database's jobs from another's where something outside is shared (Redis).
    id text NOT NULL DEFAULT substr(md5(random()::text || clock_timestamp()::text), 1, 12),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO instance DEFAULT VALUES;

CREATE TABLE queues (
    id               int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             text NOT NULL UNIQUE,
    max_retries      int NOT NULL,
    ttl              float8,
    timeout          float8,
    capacity         bigint NOT NULL DEFAULT 0, -- PENDING jobs at most; 0 = unbounded
    retry_profile    text NOT NULL,
    priority_weights json,
    paused           boolean NOT NULL DEFAULT false,
    deleted          boolean NOT NULL DEFAULT false, -- kept: records name it
    created_at       timestamptz NOT NULL
);

-- Jobs by state and attempts that ended, as differences: each write adds a row, nobody waits for
-- another's, and now and then they are folded into one for each queue. The figure is their sum.
CREATE TABLE queue_tally (
    queue         int NOT NULL,
    pending       bigint NOT NULL DEFAULT 0,
    assigned      bigint NOT NULL DEFAULT 0,
    running       bigint NOT NULL DEFAULT 0,
    done          bigint NOT NULL DEFAULT 0,
    failed        bigint NOT NULL DEFAULT 0,
    dead_lettered bigint NOT NULL DEFAULT 0,
    succeeded     bigint NOT NULL DEFAULT 0,
    unsuccessful  bigint NOT NULL DEFAULT 0,
    run_seconds   float8 NOT NULL DEFAULT 0
);

CREATE TABLE job_record (
    seq          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           uuid NOT NULL,
    created_at   float8 NOT NULL,
    ttl          float8,
    timeout      float8,
    run_at       float8,
    queue        int NOT NULL,
    max_retries  int NOT NULL,
    priority     smallint NOT NULL,
    type         text NOT NULL,
    key          text,
    labels       json,
    payload      bytea NOT NULL
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);
-- Random ids in one index would touch a random page of all its history for every insert. By
-- million, inserts stay within the last stretch of it, and a look-up asks each stretch.
CREATE UNIQUE INDEX job_record_id ON job_record ((seq >> 20), id);
CREATE INDEX job_record_queue ON job_record (queue, seq);

CREATE TABLE job_live (
    seq         bigint PRIMARY KEY,
    id          uuid NOT NULL,
    lease       bigint,
    last_lease  bigint,            -- of the attempt that ended last
    due         float8,            -- while held: when it has timed out
    wake_at     float8,            -- while waiting: run_at, expiry or retry, whichever is next
    run_at      float8,
    expires_at  float8,
    started_at  float8,
    updated_at  float8 NOT NULL,
    timeout     float8,
    queue       int NOT NULL,
    version     int NOT NULL,
    attempt     int NOT NULL,
    retry_count int NOT NULL,
    max_retries int NOT NULL,
    worker      int,               -- while held
    last_worker int,               -- of the attempt that ended last, while it waits for a retry
    prio        smallint NOT NULL, -- 9 - priority, so that the index runs in claim order
    ready       smallint NOT NULL, -- 0 not claimable, 1 since its submit, 2 came back
    state       smallint NOT NULL,
    reason      smallint NOT NULL,
    deaths      smallint NOT NULL DEFAULT 0,
    cancel      boolean NOT NULL DEFAULT false,
    error       text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
        autovacuum_analyze_scale_factor = 0.2);
-- What came back (retried, promoted, handed back) has a stretch of its own: the other one only
-- grows at its end, and a claim can begin where the last one found its first job.
CREATE INDEX job_live_ready ON job_live (queue, prio, ready, seq) WHERE ready > 0;
CREATE INDEX job_live_wake ON job_live (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX job_live_held ON job_live (worker, seq) WHERE worker IS NOT NULL;

CREATE TABLE job_ended (
    seq          bigint PRIMARY KEY,
    completed_at float8 NOT NULL,
    started_at   float8,
    run_at       float8,
    lease        bigint, -- that ended it: a repeated report is recognised by it
    queue        int NOT NULL,
    version      int NOT NULL,
    attempt      int NOT NULL,
    retry_count  int NOT NULL,
    worker       int,
    state        smallint NOT NULL,
    reason       smallint NOT NULL,
    cancel       boolean NOT NULL,
    result       bytea,
    error        text
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);
CREATE INDEX job_ended_dead ON job_ended (queue, seq) WHERE state = 6;
-- For retention, oldest first. Not BRIN: new rows fill the places of those that were removed, and
-- then every stretch of pages holds old and new ones.
CREATE INDEX job_ended_done ON job_ended (completed_at) WHERE state = 4;

CREATE TABLE job_event (
    seq        bigint NOT NULL,
    xid        bigint NOT NULL, -- the transaction that wrote it: readers follow these
    at         float8 NOT NULL,
    version    int NOT NULL,
    attempt    int NOT NULL,
    worker     int,
    from_state smallint,
    to_state   smallint NOT NULL,
    reason     smallint NOT NULL,
    detail     text,
    PRIMARY KEY (seq, version)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);
-- Summarized as it fills: until then a reader of what is new reads all that has no summary.
CREATE INDEX job_event_xid ON job_event USING brin (xid)
    WITH (pages_per_range = 32, autosummarize = on);

CREATE FUNCTION job_event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Retention and the deletion of a job say what they are about; nothing else may.
    IF TG_OP = 'DELETE' AND current_setting('jobqueue.retention', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'job events are immutable: % refused', TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER job_event_is_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON job_event
    FOR EACH STATEMENT EXECUTE FUNCTION job_event_is_immutable();

CREATE TABLE job_key (
    queue       int NOT NULL,
    key         text NOT NULL,
    id          uuid NOT NULL,
    expires_at  float8 NOT NULL,
    fingerprint bytea NOT NULL,
    PRIMARY KEY (queue, key)
);
CREATE INDEX job_key_expiry ON job_key (expires_at);

CREATE TABLE worker_name (
    id   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE workers (
    id            text PRIMARY KEY,
    incarnation   bigint NOT NULL,
    hostname      text NOT NULL,
    pid           int NOT NULL,
    concurrency   int NOT NULL,
    queues        text[] NOT NULL,
    version       text NOT NULL,
    link          bigint NOT NULL, -- drawn at each registration: where it is connected
    status        text NOT NULL,
    registered_at timestamptz NOT NULL,
    last_seen     timestamptz NOT NULL
) WITH (fillfactor = 50);

-- At most one row: who may judge silent workers and prune. Its epoch grows with every new holder
-- and is checked in the transaction of each write that it fences.
CREATE TABLE leader (
    single     boolean PRIMARY KEY DEFAULT true CHECK (single),
    holder     bigint NOT NULL,
    epoch      bigint NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE state_name (state smallint PRIMARY KEY, name text NOT NULL);
INSERT INTO state_name VALUES
    (1, 'PENDING'), (2, 'ASSIGNED'), (3, 'RUNNING'), (4, 'DONE'), (5, 'FAILED'),
    (6, 'DEAD_LETTERED');

CREATE TABLE reason_name (reason smallint PRIMARY KEY, name text NOT NULL);
INSERT INTO reason_name VALUES
    (1, 'SUBMITTED'), (2, 'ASSIGNED'), (3, 'STARTED'), (4, 'SUCCEEDED'), (5, 'HANDLER_FAILED'),
    (6, 'TIMED_OUT'), (7, 'WORKER_LOST'), (8, 'ASSIGNMENT_TIMEOUT'), (9, 'HANDED_BACK'),
    (10, 'RETRY_DUE'), (11, 'RETRIES_EXHAUSTED'), (12, 'NOT_RETRYABLE'), (13, 'POISON'),
    (14, 'CANCELLED'), (15, 'TTL_EXPIRED'), (16, 'QUEUE_DELETED'), (17, 'MANUAL_RETRY');

-- For people with psql ------------------------------------------------------------------------

-- A payload or result that is text is shown as such.
CREATE FUNCTION as_text(raw bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN convert_from(raw, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN raw::text;
END $$;

CREATE VIEW jobs AS
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
       r.key AS idempotency_key, r.labels, r.seq
FROM job_record r
LEFT JOIN job_live l ON l.seq = r.seq
LEFT JOIN job_ended e ON e.seq = r.seq
JOIN queues q ON q.id = r.queue
JOIN state_name s ON s.state = coalesce(l.state, e.state)
JOIN reason_name n ON n.reason = coalesce(l.reason, e.reason)
LEFT JOIN worker_name w ON w.id = coalesce(l.worker, l.last_worker, e.worker);

CREATE VIEW job_events AS
SELECT r.id AS job_id, e.version, f.name AS from_status, t.name AS to_status, n.name AS reason,
       to_timestamp(e.at) AS at, e.attempt, w.name AS worker_id, e.detail, q.name AS queue, e.seq
FROM job_event e
JOIN job_record r ON r.seq = e.seq
JOIN queues q ON q.id = r.queue
LEFT JOIN state_name f ON f.state = e.from_state
JOIN state_name t ON t.state = e.to_state
JOIN reason_name n ON n.reason = e.reason
LEFT JOIN worker_name w ON w.id = e.worker;

CREATE VIEW queue_depth AS
SELECT q.name AS queue, q.paused, sum(t.pending) AS pending, sum(t.assigned) AS assigned,
       sum(t.running) AS running, sum(t.failed) AS failed, sum(t.done) AS done,
       sum(t.dead_lettered) AS dead_lettered
FROM queues q LEFT JOIN queue_tally t ON t.queue = q.id
WHERE NOT q.deleted GROUP BY q.id;
