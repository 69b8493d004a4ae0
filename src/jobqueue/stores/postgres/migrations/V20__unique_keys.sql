-- The job that was accepted last with a unique key (core/unique.py). Nothing changes a row when its job
-- moves on; submits with unique keys also remove some rows whose job was removed.
CREATE TABLE job_unique (
    queue     int NOT NULL,
    key       text NOT NULL,
    id        uuid NOT NULL,
    seq       bigint NOT NULL,
    looked_at float8 NOT NULL,  -- when somebody looked last whether the job is still there
    PRIMARY KEY (queue, key)
);
CREATE INDEX job_unique_looked_at ON job_unique (looked_at);

INSERT INTO reason_name VALUES (18, 'SUPERSEDED');
