-- Schema 1; upgrade_*.sql are applied on top of it, to new files as to old ones.
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
