-- A key is kept with its owner before it (core/key_owner.py); people with psql see both apart.
CREATE OR REPLACE VIEW jobs AS
SELECT r.id AS job_id, q.name AS queue, r.type, s.name AS status, r.priority,
       coalesce(l.attempt, e.attempt) AS attempt,
       coalesce(l.retry_count, e.retry_count) AS retry_count, r.max_retries,
       as_text(r.payload) AS payload, as_text(e.result) AS result,
       coalesce(l.error, e.error) AS error, n.name AS reason, w.name AS worker_id,
       to_timestamp(r.created_at) AS created_at,
       to_timestamp(coalesce(l.started_at, e.started_at)) AS started_at,
       to_timestamp(e.completed_at) AS completed_at,
       to_timestamp(CASE WHEN l.state = 5 THEN l.wake_at END) AS next_retry_at,
       to_timestamp(coalesce(l.run_at, e.run_at)) AS run_at,
       regexp_replace(r.key, E'^\x1f[^\x1f]*\x1f', '') AS idempotency_key, r.labels, r.seq,
       substring(r.key FROM E'^\x1f([^\x1f]+)\x1f') AS key_owner
FROM job_record r
LEFT JOIN job_live l ON l.seq = r.seq
LEFT JOIN job_ended e ON e.seq = r.seq
JOIN queues q ON q.id = r.queue
JOIN state_name s ON s.state = coalesce(l.state, e.state)
JOIN reason_name n ON n.reason = coalesce(l.reason, e.reason)
LEFT JOIN worker_name w ON w.id = coalesce(l.worker, l.last_worker, e.worker);
