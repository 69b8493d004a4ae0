-- What later versions keep of a queue or a job without a column of its own.
ALTER TABLE queue ADD COLUMN more TEXT;
ALTER TABLE rec ADD COLUMN more TEXT;
