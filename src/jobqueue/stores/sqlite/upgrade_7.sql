-- Schema 7: progress of running attempts. A row counts while its job is RUNNING under that lease;
-- nothing looks for it when an attempt ends, and later heartbeats with progress remove it.

CREATE TABLE progress (
    lease INTEGER PRIMARY KEY, -- of one attempt: an old one cannot overwrite what a new one says
    seq   INTEGER NOT NULL,
    value REAL, -- 0 to 1; NULL: not known
    text  TEXT NOT NULL,
    at    REAL NOT NULL
);
