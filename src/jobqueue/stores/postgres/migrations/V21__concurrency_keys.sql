-- Limits and shares of concurrency keys (core/limits.py, core/turns.py).

-- Upkeep deletes the buckets that are full again. The bucket of a key has the key's number; that of
-- the whole queue has 0.
CREATE INDEX queue_bucket_full ON queue_bucket (full_at);

-- A job with a concurrency key has a live row from the beginning, which has the number of the key.
-- The number is the beginning of the key's SHA-256, as that of a type. Jobs without a key are in none
-- of these indexes.
ALTER TABLE job_live ADD COLUMN ckey bigint;
CREATE INDEX job_live_by_key ON job_live (queue, ckey, prio, ready, kind, seq)
    WHERE ready > 0 AND ckey IS NOT NULL;
CREATE INDEX job_live_key_held ON job_live (queue, ckey) WHERE worker IS NOT NULL AND ckey IS NOT NULL;

CREATE FUNCTION ckey_of(more json) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT kind_of(more ->> 'concurrency_key')
$$;

-- Jobs with a key count as another type, so a claim that tells keys apart can leave them out. Their
-- kind is made of the type with a NUL before it, which no type has. "more" may be NULL.
CREATE FUNCTION kind_of(type text, more json) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN more ->> 'concurrency_key' IS NULL THEN kind_of(type)
           ELSE ('x' || encode(substring(sha256('\x00'::bytea || convert_to(type, 'UTF8')) FOR 8),
                               'hex'))::bit(64)::bigint END
$$;

-- As in V16, with the field concurrency_key.
CREATE OR REPLACE FUNCTION submit_job(
    spec json, OUT status text, OUT job_id uuid, OUT field text, OUT message text
) LANGUAGE plpgsql AS $$
DECLARE
    new_queue CONSTANT text := coalesce(spec ->> 'queue', 'default');
    new_type CONSTANT text := coalesce(spec ->> 'type', '');
    new_payload CONSTANT bytea := coalesce(decode(spec ->> 'payload', 'base64'), '');
    new_labels CONSTANT json := nullif((spec -> 'labels')::text, 'null')::json;
    new_priority CONSTANT int := coalesce((spec ->> 'priority')::int, 0);
    new_delay CONSTANT float8 := (spec ->> 'delay')::float8;
    said_key CONSTANT text := spec ->> 'key';
    -- As core/ids.py (stored_key) writes a key without an owner.
    new_key CONSTANT text := CASE WHEN starts_with(said_key, E'\x1f') THEN E'\x1f\x1f' ELSE '' END || said_key;
    concurrency_key CONSTANT text := spec ->> 'concurrency_key';
    new_more CONSTANT json := '{"concurrency_key": ' || to_json(concurrency_key) || '}';
    new_ttl float8 := (spec ->> 'ttl')::float8;
    new_run_at float8 := (spec ->> 'run_at')::float8;
    kind CONSTANT bigint := kind_of(new_type, new_more);
    digest CONSTANT bytea := sha256(new_payload || '\x00'::bytea || convert_to(new_type, 'UTF8'));
    at float8 := extract(epoch FROM clock_timestamp());
    limits record;
    home record;
    known record;
    record_seq bigint;
BEGIN
    SELECT k INTO field FROM json_object_keys(spec) AS k WHERE k <> ALL (ARRAY[
        'queue', 'type', 'payload', 'labels', 'priority', 'max_retries', 'ttl', 'timeout', 'delay',
        'run_at', 'key', 'concurrency_key']);
    IF FOUND THEN
        status := 'invalid';
        message := 'this database does not know the field: a server of the caller''s version must have been'
                   ' started on it first';
        RETURN;
    END IF;
    SELECT i.key_ttl, i.max_payload_bytes INTO STRICT limits FROM instance AS i;
    SELECT c.field, c.message INTO field, message FROM check_job(
        new_queue, new_type, new_payload, new_labels, new_priority, (spec ->> 'max_retries')::int, new_ttl,
        (spec ->> 'timeout')::float8, new_delay, new_run_at, said_key, limits.max_payload_bytes, at) AS c;
    IF coalesce(field, 'labels') = 'labels' AND length(concurrency_key) NOT BETWEEN 1 AND 200 THEN
        field := 'concurrency_key';
        message := '1 to 200 characters are allowed';
    END IF;
    IF field IS NOT NULL THEN
        status := 'invalid';
        RETURN;
    END IF;
    -- The lock prevents the deletion of the queue; changes of its settings do not wait for it.
    SELECT q.id, q.max_retries, q.ttl, q.timeout, q.capacity INTO home FROM queues AS q
    WHERE q.name = new_queue AND NOT q.deleted FOR KEY SHARE;
    IF NOT FOUND THEN
        status := 'no_queue';
        field := 'queue';
        message := format('there is no queue %L; create it with: jq-ctl queue create %s', new_queue, new_queue);
        RETURN;
    END IF;
    IF new_ttl IS NULL AND coalesce(new_delay, new_run_at - at) >= home.ttl THEN
        status := 'invalid';
        field := CASE WHEN new_delay IS NULL THEN 'run_at' ELSE 'delay' END;
        message := format('the job would expire before it may start: it waits %s s, and its queue''s ttl ends'
                          ' %s s after the submit; make ttl longer than %s',
                          coalesce(new_delay, new_run_at - at), home.ttl, field);
        RETURN;
    END IF;
    job_id := gen_random_uuid();

    -- As "take_keys" and "read_keys". This waits for an open transaction that has the same key.
    WHILE new_key IS NOT NULL LOOP
        INSERT INTO job_key AS k (queue, key, id, expires_at, fingerprint, sha256)
        VALUES (home.id, new_key, job_id, at + limits.key_ttl, digest, digest)
        ON CONFLICT (queue, key) DO UPDATE
        SET id = excluded.id, expires_at = excluded.expires_at, fingerprint = excluded.fingerprint,
            sha256 = excluded.sha256
        WHERE k.expires_at <= excluded.expires_at - limits.key_ttl;
        EXIT WHEN FOUND;
        SELECT k.id, k.sha256 INTO known FROM job_key AS k
        WHERE k.queue = home.id AND k.key = new_key AND k.expires_at > at;
        IF FOUND THEN
            job_id := known.id;
            IF known.sha256 = digest OR known.sha256 IS NULL AND NOT is_other_job(job_id, new_type, new_payload)
            THEN
                status := 'duplicate';
            ELSE
                status := 'key_conflict';
                field := 'idempotency_key';
                message := format('%L was used for job %s with another payload or type', said_key, job_id);
            END IF;
            RETURN;
        END IF;
    END LOOP;
    at := extract(epoch FROM clock_timestamp()); -- the wait for the key may have been long
    new_run_at := coalesce(new_run_at, at + new_delay);
    new_ttl := coalesce(new_ttl, home.ttl);

    -- Without a lock, because a lock would last as long as the caller's transaction, and stop all other
    -- submits to the queue.
    IF home.capacity > 0
       AND (SELECT coalesce(sum(t.pending), 0) FROM queue_tally AS t WHERE t.queue = home.id) >= home.capacity
    THEN
        DELETE FROM job_key AS k WHERE k.queue = home.id AND k.key = new_key;
        status := 'full';
        job_id := NULL;
        message := format('queue %L is full (%s jobs are waiting)', new_queue, home.capacity);
        RETURN;
    END IF;

    INSERT INTO job_record (id, queue, type, payload, labels, priority, max_retries, ttl, timeout, run_at,
                            created_at, key, more)
    VALUES (job_id, home.id, new_type, new_payload, nullif(new_labels::text, '{}')::json, new_priority,
            coalesce((spec ->> 'max_retries')::int, home.max_retries), new_ttl,
            coalesce((spec ->> 'timeout')::float8, home.timeout), new_run_at, at, new_key, new_more)
    RETURNING seq INTO record_seq;
    INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt, retry_count,
                          max_retries, timeout, run_at, expires_at, wake_at, updated_at, ckey)
    SELECT r.seq, r.id, r.queue, kind, 9 - r.priority, CASE WHEN r.run_at > r.created_at THEN 0 ELSE 1 END, 1,
           1, 1, 0, 0, r.max_retries, r.timeout, r.run_at, r.created_at + r.ttl,
           least(CASE WHEN r.run_at > r.created_at THEN r.run_at END, r.created_at + r.ttl), r.created_at,
           ckey_of(new_more)
    FROM job_record AS r WHERE r.seq = ANY (ARRAY[record_seq]);
    INSERT INTO job_event (seq, xid, at, version, attempt, to_state, reason)
    VALUES (record_seq, pg_current_xact_id()::text::bigint, at, 1, 0, 1, 1);
    INSERT INTO queue_tally (queue, pending, layout) VALUES (home.id, 1, 3);
    PERFORM tell_of_job(home.id, 9 - new_priority, kind, record_seq) WHERE new_run_at > at IS NOT TRUE;
    status := 'accepted';
END $$;
