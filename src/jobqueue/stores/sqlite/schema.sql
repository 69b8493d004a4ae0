-- Each section brings a file from the schema before it to this one. New files go through all of them.

-- schema: 1
-- Layout: a wide record per job, written at submit and once more at the end; a narrow live row
-- while the job is unfinished, which carries everything the scheduler looks at; events appended
-- in commit order. Times are seconds since the epoch. Read with the views at the end.

CREATE TABLE queue (
    id              INTEGER PRIMARY KEY,
    name            TEXT    NOT NULL UNIQUE,
    max_retries     INTEGER NOT NULL,
    ttl             REAL,
    timeout         REAL,
    capacity        INTEGER NOT NULL,
    retry_profile   TEXT    NOT NULL,
    priority_weights TEXT,
    paused          INTEGER NOT NULL DEFAULT 0,
    created_at      REAL    NOT NULL,
    deleted         INTEGER NOT NULL DEFAULT 0,
    -- jobs by state, kept by every write, so that capacity and stats need no scan
    pending         INTEGER NOT NULL DEFAULT 0,
    assigned        INTEGER NOT NULL DEFAULT 0,
    running         INTEGER NOT NULL DEFAULT 0,
    done            INTEGER NOT NULL DEFAULT 0,
    failed          INTEGER NOT NULL DEFAULT 0,
    dead_lettered   INTEGER NOT NULL DEFAULT 0,
    -- attempts that ended
    succeeded_total INTEGER NOT NULL DEFAULT 0,
    failed_total    INTEGER NOT NULL DEFAULT 0,
    run_seconds     REAL    NOT NULL DEFAULT 0,
    timed_total     INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE rec (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           BLOB    NOT NULL,
    queue        INTEGER NOT NULL,
    type         TEXT    NOT NULL,
    payload      BLOB    NOT NULL,
    labels       TEXT,
    priority     INTEGER NOT NULL,
    max_retries  INTEGER NOT NULL,
    ttl          REAL,
    timeout      REAL,
    key          TEXT,
    created_at   REAL    NOT NULL,
    -- from here on written when the job ends; while it is live, its live row counts
    state        INTEGER,
    version      INTEGER,
    attempt      INTEGER,
    retry_count  INTEGER,
    worker       TEXT,
    run_at       REAL,
    cancel       INTEGER,
    started_at   REAL,
    completed_at REAL,
    result       BLOB,
    error        TEXT,
    reason       TEXT
);
CREATE UNIQUE INDEX rec_id ON rec (id);
CREATE INDEX rec_queue ON rec (queue);
CREATE INDEX rec_dead ON rec (queue) WHERE state = 6;
CREATE INDEX rec_done ON rec (completed_at) WHERE state = 4; -- retention

CREATE TABLE live (
    seq         INTEGER PRIMARY KEY,
    queue       INTEGER NOT NULL,
    prio        INTEGER NOT NULL, -- 9 - priority, so that the index runs in claim order
    ready       INTEGER NOT NULL, -- 1: PENDING and not waiting for run_at
    state       INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    retry_count INTEGER NOT NULL,
    max_retries INTEGER NOT NULL,
    lease       INTEGER,
    worker      TEXT,
    cancel      INTEGER NOT NULL DEFAULT 0,
    deaths      INTEGER NOT NULL DEFAULT 0,
    timeout     REAL,
    run_at      REAL,
    expires_at  REAL,
    started_at  REAL,
    updated_at  REAL    NOT NULL,
    due         REAL,             -- when the sweeper must look
    error       TEXT,
    reason      TEXT    NOT NULL
);
CREATE INDEX live_ready ON live (queue, prio, seq) WHERE ready = 1;
CREATE INDEX live_due ON live (due) WHERE state IN (1, 5) AND due IS NOT NULL;
CREATE INDEX live_held ON live (worker) WHERE state IN (2, 3);

CREATE TABLE event (
    position   INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice: readers remember it
    seq        INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    from_state INTEGER,
    to_state   INTEGER NOT NULL,
    reason     TEXT    NOT NULL,
    at         REAL    NOT NULL,
    attempt    INTEGER NOT NULL,
    worker     TEXT,
    detail     TEXT
);
CREATE INDEX event_seq ON event (seq);

CREATE TABLE idempotency (
    queue       INTEGER NOT NULL,
    key         TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    id          BLOB    NOT NULL,
    fingerprint BLOB    NOT NULL,
    expires_at  REAL    NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE worker (
    id            TEXT    PRIMARY KEY,
    incarnation   INTEGER NOT NULL,
    hostname      TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    concurrency   INTEGER NOT NULL,
    queues        TEXT    NOT NULL,
    version       TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    registered_at REAL    NOT NULL,
    last_seen     REAL    NOT NULL
) WITHOUT ROWID;

-- What a health check writes.
CREATE TABLE probe (id INTEGER PRIMARY KEY, at REAL, filler BLOB);
INSERT INTO probe (id) VALUES (1);

CREATE TABLE state_name (state INTEGER PRIMARY KEY, name TEXT NOT NULL);
INSERT INTO state_name VALUES
    (1, 'PENDING'), (2, 'ASSIGNED'), (3, 'RUNNING'), (4, 'DONE'), (5, 'FAILED'), (6, 'DEAD_LETTERED');

-- For people with the sqlite3 shell.
CREATE VIEW jobs AS
SELECT r.seq,
       lower(substr(hex(r.id), 1, 8) || '-' || substr(hex(r.id), 9, 4) || '-' ||
             substr(hex(r.id), 13, 4) || '-' || substr(hex(r.id), 17, 4) || '-' ||
             substr(hex(r.id), 21)) AS job_id,
       q.name AS queue, r.type, s.name AS status, r.priority,
       coalesce(l.attempt, r.attempt) AS attempt,
       coalesce(l.retry_count, r.retry_count) AS retry_count, r.max_retries,
       CAST(r.payload AS TEXT) AS payload, CAST(r.result AS TEXT) AS result,
       coalesce(l.error, r.error) AS error, coalesce(l.reason, r.reason) AS reason,
       coalesce(l.worker, r.worker) AS worker_id,
       datetime(r.created_at, 'unixepoch') AS created_at,
       datetime(coalesce(l.started_at, r.started_at), 'unixepoch') AS started_at,
       datetime(r.completed_at, 'unixepoch') AS completed_at
FROM rec r
LEFT JOIN live l ON l.seq = r.seq
JOIN queue q ON q.id = r.queue
JOIN state_name s ON s.state = coalesce(l.state, r.state);

CREATE VIEW job_events AS
SELECT e.position, j.job_id, e.version, f.name AS from_status, t.name AS to_status, e.reason,
       e.attempt, e.worker AS worker_id, strftime('%Y-%m-%dT%H:%M:%fZ', e.at, 'unixepoch') AS at,
       e.detail
FROM event e
JOIN jobs j ON j.seq = e.seq
LEFT JOIN state_name f ON f.state = e.from_state
JOIN state_name t ON t.state = e.to_state;

-- schema: 2
-- Several servers on one file.

-- Who leads: one row. An epoch never comes back, and a resigned lead has no holder.
CREATE TABLE leader (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    holder INTEGER,
    epoch  INTEGER NOT NULL,
    until  REAL    NOT NULL
);
INSERT INTO leader (id, epoch, until) VALUES (1, 0, 0);

-- Counts what other processes should look at beside the jobs: cancel flags, workers, the lead.
CREATE TABLE control (id INTEGER PRIMARY KEY CHECK (id = 1), changes INTEGER NOT NULL);
INSERT INTO control VALUES (1, 0);

-- Which registration of a worker is the latest.
ALTER TABLE worker ADD COLUMN link INTEGER NOT NULL DEFAULT 0;

-- schema: 3
-- Taskqueue.v1 lists its jobs by their time. Other jobs are not in this index, and cost
-- no more than before.
CREATE INDEX rec_time ON rec (CAST(created_at * 1000 AS INTEGER), id) WHERE type = 'taskqueue.v1';

-- schema: 4
-- The event stream. Events are its outbox; what is no event has one of its own.

-- When the attempt that failed began.
ALTER TABLE event ADD COLUMN started_at REAL;
-- Of a job's first event: its run_at. Of a FAILED one: when it is retried.
ALTER TABLE event ADD COLUMN due REAL;
UPDATE event SET due = (SELECT run_at FROM live WHERE live.seq = event.seq)
WHERE version = 1 AND seq IN (SELECT seq FROM live WHERE run_at IS NOT NULL);
UPDATE event SET due = (SELECT run_at FROM rec WHERE rec.seq = event.seq)
WHERE version = 1 AND seq IN (SELECT seq FROM rec WHERE state IS NOT NULL AND run_at IS NOT NULL);

-- Changes of queues, removals and cancel flags, until the stream has got them.
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    after  INTEGER NOT NULL, -- the last event's position when it was written
    kind   INTEGER NOT NULL, -- a queue was 1 created, 2 changed, 3 deleted; 4 cancel; 5 job deleted
    at     REAL    NOT NULL,
    body   TEXT    NOT NULL
);

-- How far the stream has come: one row, or none where there is no stream.
CREATE TABLE stream (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    event   INTEGER NOT NULL,
    entry   INTEGER NOT NULL,
    refused INTEGER NOT NULL
);

-- schema: 5
-- Who leads, for people. A process that does not know these columns leaves them as they
-- are: "named" is the epoch that they tell of.

ALTER TABLE leader ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE leader ADD COLUMN since REAL NOT NULL DEFAULT 0;
ALTER TABLE leader ADD COLUMN named INTEGER NOT NULL DEFAULT 0;

-- schema: 6
-- Workers say which types they know, and claims give them only those. The index has each
-- type's jobs side by side, so that those of other types are never looked at.

ALTER TABLE live ADD COLUMN type TEXT;
UPDATE live SET type = (SELECT type FROM rec WHERE rec.seq = live.seq);
DROP INDEX live_ready;
CREATE INDEX live_ready ON live (queue, type, prio, seq) WHERE ready = 1;

-- A process that has the file open since before does not know the column.
CREATE TRIGGER live_type AFTER INSERT ON live WHEN new.type IS NULL BEGIN
    UPDATE live SET type = (SELECT type FROM rec WHERE rec.seq = new.seq) WHERE seq = new.seq;
END;

-- The types that a worker knows, as a JSON array; NULL: every type.
ALTER TABLE worker ADD COLUMN types TEXT;

-- schema: 7
-- Progress of running attempts. A row counts while its job is RUNNING under that lease;
-- nothing looks for it when an attempt ends, and later heartbeats with progress remove it.

CREATE TABLE progress (
    lease INTEGER PRIMARY KEY, -- of one attempt: an old one cannot overwrite what a new one says
    seq   INTEGER NOT NULL,
    value REAL, -- 0 to 1; NULL: not known
    text  TEXT NOT NULL,
    at    REAL NOT NULL
);

-- schema: 8
-- How long the failed jobs of a queue wait, where that is not as its profile says.

ALTER TABLE queue ADD COLUMN retry_base REAL;
ALTER TABLE queue ADD COLUMN retry_max REAL;
ALTER TABLE queue ADD COLUMN retry_jitter REAL;

-- schema: 9
-- Who registered a worker; empty: nobody had to say who they are.

ALTER TABLE worker ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE INDEX worker_owner ON worker (owner) WHERE owner <> '';

-- schema: 10
-- How long jobs of a queue are kept, where that is not as the server says.

ALTER TABLE queue ADD COLUMN retention REAL;
ALTER TABLE queue ADD COLUMN dead_letter_retention REAL;

-- schema: 11
-- Which store this is, for readers of its event stream (core/identity.py). Records of
-- earlier versions do not say who wrote them: those of a stream that is there are this store's.

CREATE TABLE instance (
    id         TEXT NOT NULL,
    generation TEXT NOT NULL,
    continues  TEXT NOT NULL
);
INSERT INTO instance
SELECT lower(hex(randomblob(6))), '1', CASE WHEN EXISTS (SELECT 1 FROM stream) THEN 'unnamed' ELSE '' END;

-- schema: 12
-- Slots of a worker whose attempt is over and whose function still runs, by its last heartbeat.
ALTER TABLE worker ADD COLUMN overrun INTEGER NOT NULL DEFAULT 0;

-- schema: 13
-- What later versions keep of a queue or a job without a column of its own.
ALTER TABLE queue ADD COLUMN more TEXT;
ALTER TABLE rec ADD COLUMN more TEXT;

-- schema: 14
-- The buckets of rate limits (core/limits.py); the key is empty for the limit of a queue. A bucket
-- without a row is full.
CREATE TABLE bucket (
    queue   INTEGER NOT NULL,
    key     TEXT    NOT NULL,
    full_at REAL    NOT NULL, -- when the bucket is full again
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;

-- schema: 15
-- Schedules (core/schedule.py). A tick changes the revision, the state and due_at alone.

CREATE TABLE schedule (
    name       TEXT    PRIMARY KEY,
    revision   INTEGER NOT NULL, -- a write names the revision that it replaces
    due_at     REAL, -- when the leader must look at it; NULL while it is paused
    payload    BLOB    NOT NULL,
    definition TEXT    NOT NULL,
    state      TEXT    NOT NULL
);
CREATE INDEX schedule_due ON schedule (due_at) WHERE due_at IS NOT NULL;

-- schema: 16
-- Types that a worker has paused, because their jobs failed in a row (core/breaker.py), in JSON.
ALTER TABLE worker ADD COLUMN breakers TEXT;

-- schema: 17
-- The job that was accepted last with a unique key (core/unique.py).
CREATE TABLE unique_key (
    queue INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    seq   INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX unique_key_seq ON unique_key (seq);

-- schema: 18
-- Limits and shares of concurrency keys (core/limits.py, core/turns.py).

CREATE INDEX bucket_full ON bucket (full_at);
-- The job's concurrency key; NULL: it has none. While such a job is claimable, "ready" is 2. It is in
-- these indexes alone, and jobs without a key are in none of them.
ALTER TABLE live ADD COLUMN ckey TEXT;
CREATE INDEX live_keyed ON live (queue, type, prio, seq) WHERE ready = 2;
CREATE INDEX live_by_key ON live (queue, ckey, type, prio, seq) WHERE ready = 2;
CREATE INDEX live_key_held ON live (queue, ckey) WHERE state IN (2, 3) AND ckey IS NOT NULL;
