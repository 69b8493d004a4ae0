-- How long the failed jobs of a queue wait, where that is not as its profile says.
ALTER TABLE queues ADD COLUMN retry_base float8,
                   ADD COLUMN retry_max float8,
                   ADD COLUMN retry_jitter float8;
