-- Progress of running attempts. A row counts while its job is RUNNING under that lease; nothing
-- looks for it when an attempt ends, and later heartbeats with progress remove it. Its key is the
-- lease, so that an old attempt cannot overwrite what a new one says. It is written about once a
-- second for each job that reports, and worth nothing after a crash: it is not in the log (WAL).
CREATE UNLOGGED TABLE job_progress (
    lease bigint PRIMARY KEY,
    seq   bigint NOT NULL,
    value float8, -- 0 to 1; NULL: not known
    text  text NOT NULL,
    at    float8 NOT NULL
) WITH (fillfactor = 50); -- room for the next row beside the one it replaces
