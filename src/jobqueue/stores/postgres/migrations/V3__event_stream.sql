-- The event stream. Job events are its outbox; what is no event has one of its own.

-- Of an event into FAILED: when the attempt began, and when the job is retried.
ALTER TABLE job_event ADD COLUMN started_at float8, ADD COLUMN due float8;

-- Whoever follows the events looks for single transactions and for the latest ones, all the time.
-- A BRIN index reads whole stretches of the table for that, and all of it once retention has made
-- room for new rows among old ones. Many events share a transaction: the tree is small.
CREATE INDEX job_event_by_xid ON job_event (xid);
DROP INDEX job_event_xid;

-- Changes of queues, removals and cancel flags, until the stream has got them.
CREATE TABLE outbox (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid     bigint NOT NULL, -- as in job_event
    seq     bigint NOT NULL, -- 0: of a queue, and therefore before all jobs
    version int NOT NULL,    -- comes after the job's event of that version
    kind    smallint NOT NULL, -- a queue was 1 created, 2 changed, 3 deleted; 4 cancel; 5 job deleted
    at      float8 NOT NULL,
    body    text NOT NULL
);
CREATE INDEX outbox_by_xid ON outbox (xid);

-- How far the stream has come: one row, or none where there is no stream. It has got all that had
-- been committed at one moment (as a snapshot says it: below "since" but for what was open then),
-- and of what was committed until a later one everything up to (seq, version).
CREATE TABLE stream (
    single     boolean PRIMARY KEY DEFAULT true CHECK (single),
    position   text NOT NULL,
    since      bigint NOT NULL,
    since_open bigint[] NOT NULL,
    until      bigint NOT NULL,
    until_open bigint[] NOT NULL,
    seq        bigint NOT NULL,
    version    int NOT NULL,
    refused    bigint NOT NULL DEFAULT 0, -- records that it cannot take
    moved_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- In a database that was moved to another cluster the numbers of transactions are given anew.
CREATE OR REPLACE FUNCTION job_event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Retention and the deletion of a job say what they are about; nothing else may.
    IF TG_OP = 'DELETE' AND current_setting('jobqueue.retention', true) = 'on'
       OR TG_OP = 'UPDATE' AND current_setting('jobqueue.renumbering', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'job events are immutable: % refused', TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
