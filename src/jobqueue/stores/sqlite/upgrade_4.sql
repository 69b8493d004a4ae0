-- Schema 4: the event stream. Events are its outbox; what is no event has one of its own.

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
