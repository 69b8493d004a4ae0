-- What later versions keep of a queue or a job without a column of its own.
ALTER TABLE queues ADD COLUMN more json;
ALTER TABLE job_record ADD COLUMN more json;
