-- taskqueue.v1 lists its jobs by their time. Other jobs are not in this index, and cost no more
-- than before.
CREATE INDEX job_record_time ON job_record (floor(created_at * 1000), id)
    WHERE type = 'taskqueue.v1';
