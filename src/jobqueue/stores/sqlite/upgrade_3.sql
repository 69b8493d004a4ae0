-- Schema 3: taskqueue.v1 lists its jobs by their time. Other jobs are not in this index, and cost
-- no more than before.
CREATE INDEX rec_time ON rec (CAST(created_at * 1000 AS INTEGER), id) WHERE type = 'taskqueue.v1';
