-- Buckets of rate limits (core/limits.py). A bucket without a row is full. Claims of a queue with limits
-- count under an advisory lock of the queue.
CREATE TABLE queue_bucket (
    queue   int NOT NULL,
    key     bigint NOT NULL,  -- 0: of the whole queue
    full_at float8 NOT NULL,  -- when the bucket is full again
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50);
