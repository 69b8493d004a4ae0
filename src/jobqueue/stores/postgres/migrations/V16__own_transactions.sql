-- Submit a job, and end an attempt, inside a transaction of the user's own (ADR 24). The functions of
-- the schema "jq" are for users; they run with the rights of their owner, on this job queue's tables.
-- They write a row for each job, which every layout allows.

-- What the function needs of the servers' settings. A server writes its own when it starts.
ALTER TABLE instance ADD COLUMN key_ttl float8 NOT NULL DEFAULT 86400,
                     ADD COLUMN max_payload_bytes bigint NOT NULL DEFAULT 1048576;

-- The fingerprint of a key is a BLAKE2b hash, which PostgreSQL lacks. Servers write this hash of the same
-- data beside it. NULL: a server of an older version wrote the key.
ALTER TABLE job_key ADD COLUMN sha256 bytea;

DO $$
BEGIN
    IF to_regprocedure('jq.submit_jobs(json)') IS NOT NULL THEN
        RAISE EXCEPTION 'the schema jq belongs to another job queue in this database; keep this one in a'
            ' database of its own';
    END IF;
    IF to_regnamespace('jq') IS NULL THEN
        CREATE SCHEMA jq;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE EXCEPTION 'cannot create the schema jq in this database: let its owner run "CREATE SCHEMA jq'
        ' AUTHORIZATION %" once, then start again', current_user USING ERRCODE = 'insufficient_privilege';
END $$;

-- The first field of a new job that is not allowed, and why; NULL: all are allowed. These are the rules of
-- engine/admission.py (check_spec).
CREATE FUNCTION check_job(
    queue text, type text, payload bytea, labels json, priority int, max_retries int, ttl float8,
    timeout float8, delay float8, run_at float8, key text, max_payload_bytes bigint, at float8,
    OUT field text, OUT message text
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    longest CONSTANT float8 := 315360000;   -- core/clock.py: MAX_SECONDS
    latest CONSTANT float8 := 253402300799; -- core/clock.py: LATEST
    wait CONSTANT float8 := coalesce(delay, run_at - at);
BEGIN
    IF queue !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$' THEN
        field := 'queue';
        message := format('%L is not a queue name: 1 to 100 letters, digits, ''.'', ''_'' or ''-'', the'
                          ' first a letter or digit', left(queue, 120));
    ELSIF length(payload) = 0 THEN
        field := 'payload';
        message := 'must not be empty';
    ELSIF length(payload) > max_payload_bytes THEN
        field := 'payload';
        message := format('%s bytes are too many; at most %s are allowed', length(payload),
                          max_payload_bytes);
    ELSIF priority NOT BETWEEN 0 AND 9 THEN
        field := 'priority';
        message := format('%s is outside 0 to 9 (9 is highest)', priority);
    ELSIF max_retries NOT BETWEEN 0 AND 1000 THEN
        field := 'max_retries';
        message := format('%s is outside 0 to 1000', max_retries);
    ELSIF NOT (ttl > 0 AND ttl <= longest) THEN
        field := 'ttl';
        message := format('must be more than 0 and at most %s seconds', longest);
    ELSIF NOT (timeout > 0 AND timeout <= longest) THEN
        field := 'timeout';
        message := format('must be more than 0 and at most %s seconds', longest);
    ELSIF delay IS NOT NULL AND run_at IS NOT NULL THEN
        field := 'delay';
        message := 'give delay or run_at, not both';
    ELSIF NOT (delay >= 0 AND delay <= longest) THEN
        field := 'delay';
        message := format('must be 0 to %s seconds', longest);
    ELSIF NOT (run_at >= 0 AND run_at <= latest) THEN
        field := 'run_at';
        message := 'must be a time between 1970 and 9999';
    ELSIF wait >= ttl THEN
        field := CASE WHEN delay IS NULL THEN 'run_at' ELSE 'delay' END;
        message := format('the job would expire before it may start: it waits %s s, and its ttl ends %s s'
                          ' after the submit; make ttl longer than %s', wait, ttl, field);
    ELSIF length(type) > 200 THEN
        field := 'type';
        message := '1 to 200 characters are allowed';
    ELSIF length(key) NOT BETWEEN 1 AND 255 THEN
        field := 'idempotency_key';
        message := '1 to 255 characters are allowed';
    ELSIF key LIKE 'cron:%' THEN
        field := 'idempotency_key';
        message := 'keys that begin with ''cron:'' belong to schedules';
    ELSIF octet_length(labels::text) > 262144 THEN -- they are stored as they are, with all spaces
        field := 'labels';
        message := 'have too many bytes of JSON; at most 262144 are allowed';
    ELSIF json_typeof(labels) <> 'object' THEN
        field := 'labels';
        message := 'expected an object of names and texts';
    ELSIF labels IS NOT NULL THEN
        SELECT 'labels', CASE
                   WHEN count(*) > 32 THEN 'at most 32 labels are allowed'
                   WHEN bool_or(json_typeof(l.value) <> 'string') THEN 'expected an object of names and texts'
                   WHEN bool_or(length(l.key) NOT BETWEEN 1 AND 255 OR length(l.value #>> '{}') > 255)
                       THEN '1 to 255 characters are allowed'
                   WHEN sum(octet_length(l.key) + octet_length(l.value #>> '{}')) > 32768
                       THEN format('the labels have %s bytes together; at most 32768 are allowed',
                                   sum(octet_length(l.key) + octet_length(l.value #>> '{}')))
               END
        INTO field, message FROM json_each(labels) AS l;
        IF message IS NULL THEN
            field := NULL;
        END IF;
    END IF;
END $$;

-- (new) -> PENDING, of one job in the caller's transaction. It writes what "submit" and "submit_long"
-- (queries.sql) write for a job with a row of its own. A refusal is an answer, not an error, so that the
-- caller's transaction can continue.
CREATE FUNCTION submit_job(
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
    new_ttl float8 := (spec ->> 'ttl')::float8;
    new_run_at float8 := (spec ->> 'run_at')::float8;
    kind CONSTANT bigint := kind_of(new_type);
    digest CONSTANT bytea := sha256(new_payload || '\x00'::bytea || convert_to(new_type, 'UTF8'));
    at float8 := extract(epoch FROM clock_timestamp());
    limits record;
    home record;
    known record;
    record_seq bigint;
BEGIN
    SELECT k INTO field FROM json_object_keys(spec) AS k WHERE k <> ALL (ARRAY[
        'queue', 'type', 'payload', 'labels', 'priority', 'max_retries', 'ttl', 'timeout', 'delay',
        'run_at', 'key']);
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
                            created_at, key)
    VALUES (job_id, home.id, new_type, new_payload, nullif(new_labels::text, '{}')::json, new_priority,
            coalesce((spec ->> 'max_retries')::int, home.max_retries), new_ttl,
            coalesce((spec ->> 'timeout')::float8, home.timeout), new_run_at, at, new_key)
    RETURNING seq INTO record_seq;
    INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt, retry_count,
                          max_retries, timeout, run_at, expires_at, wake_at, updated_at)
    SELECT r.seq, r.id, r.queue, kind, 9 - r.priority, CASE WHEN r.run_at > r.created_at THEN 0 ELSE 1 END, 1,
           1, 1, 0, 0, r.max_retries, r.timeout, r.run_at, r.created_at + r.ttl,
           least(CASE WHEN r.run_at > r.created_at THEN r.run_at END, r.created_at + r.ttl), r.created_at
    FROM job_record AS r WHERE r.seq = ANY (ARRAY[record_seq]);
    INSERT INTO job_event (seq, xid, at, version, attempt, to_state, reason)
    VALUES (record_seq, pg_current_xact_id()::text::bigint, at, 1, 0, 1, 1);
    INSERT INTO queue_tally (queue, pending, layout) VALUES (home.id, 1, 3);
    PERFORM tell_of_job(home.id, 9 - new_priority, kind, record_seq) WHERE new_run_at > at IS NOT TRUE;
    status := 'accepted';
END $$;

-- Whether a job has another type or payload; false if it was removed. For keys without a SHA-256 hash.
CREATE FUNCTION is_other_job(job uuid, type text, payload bytea) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM generate_series((SELECT max(seq) FROM job_record) >> 20,
                                    (SELECT min(seq) FROM job_record) >> 20, -1) AS s(stretch)
        JOIN job_record AS r ON (r.seq >> 20) = s.stretch AND r.id = $1
        WHERE r.type <> $2 OR r.payload <> $3)
$$;

-- Tells servers at the commit which jobs have become claimable (notices.py): of each queue, priority and
-- type only the first one in this transaction, because the others have higher numbers. A transaction that
-- is to be prepared (two-phase commit) sets jobqueue.notify to off, because PostgreSQL refuses to prepare
-- one that notifies. Both settings end with the transaction, or with the savepoint that is rolled back.
CREATE FUNCTION tell_of_job(queue int, prio int, kind bigint, seq bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    told CONSTANT text := coalesce(current_setting('jobqueue.told', true), '');
    head CONSTANT text := format(' %s,%s,%s', queue, prio, kind);
BEGIN
    IF current_setting('jobqueue.notify', true) = 'off' OR told = 'all' OR position(head || ' ' IN told || ' ') > 0
    THEN
        RETURN;
    END IF;
    IF length(told) > 4000 THEN
        PERFORM set_config('jobqueue.told', 'all', true), pg_notify('jobqueue', '[0,1,null]');
    ELSE
        PERFORM set_config('jobqueue.told', told || head, true),
                pg_notify('jobqueue', format('[0,1,[[%s,%s,%s,%s]]]', queue, prio, kind, seq));
    END IF;
END $$;

-- For clients: a row for each job of a JSON array, in its order. The fields of a job are those of
-- submit_job; durations are in seconds, run_at in seconds since the epoch, the payload is in base64.
CREATE FUNCTION jq.submit_jobs(jobs json)
RETURNS TABLE (n int, status text, job_id uuid, field text, message text)
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    spec json;
BEGIN
    IF json_array_length(jobs) > 1000 THEN
        RAISE EXCEPTION 'jobs: % are too many; at most 1000 are allowed', json_array_length(jobs)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    n := 0;
    FOR spec IN SELECT value FROM json_array_elements(jobs) LOOP
        n := n + 1;
        SELECT s.status, s.job_id, s.field, s.message INTO status, job_id, field, message
        FROM submit_job(spec) AS s;
        RETURN NEXT;
    END LOOP;
END $$;

-- For people, triggers and other languages: submit one job, and get its id. "body" is the payload where it
-- is not JSON, or must have these very bytes. Anything that is not accepted is an error.
CREATE FUNCTION jq.submit(
    queue text DEFAULT 'default', type text DEFAULT '', payload jsonb DEFAULT '{}', priority int DEFAULT 0,
    max_retries int DEFAULT NULL, ttl interval DEFAULT NULL, timeout interval DEFAULT NULL,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, key text DEFAULT NULL,
    labels jsonb DEFAULT NULL, body bytea DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    answer record;
BEGIN
    SELECT * INTO answer FROM submit_job(json_strip_nulls(json_build_object(
        'queue', queue, 'type', type, 'priority', priority, 'max_retries', max_retries, 'key', key,
        'ttl', extract(epoch FROM ttl), 'timeout', extract(epoch FROM timeout),
        'delay', extract(epoch FROM delay), 'run_at', extract(epoch FROM run_at), 'labels', labels,
        'payload', translate(encode(coalesce(body, convert_to(payload::text, 'UTF8')), 'base64'), E'\n', ''))));
    IF answer.status IN ('accepted', 'duplicate') THEN
        RETURN answer.job_id;
    END IF;
    RAISE EXCEPTION '%', concat_ws(': ', answer.field, answer.message) USING ERRCODE = CASE answer.status
        WHEN 'invalid' THEN 'invalid_parameter_value'
        WHEN 'no_queue' THEN 'undefined_object'
        WHEN 'full' THEN 'configuration_limit_exceeded'
        ELSE 'unique_violation' END;
END $$;

-- RUNNING -> DONE, by the lease, in the transaction of the handler (Context.complete). As "finish"
-- (queries.sql), for one job. The row stays locked until the transaction ends: others skip it. Returns
-- "done", or why nothing was written: "cancelled" (a cancel was requested), "held" (the start is not
-- written yet, so the job shares a row with others), "stale" (the lease is not in force).
CREATE FUNCTION jq.complete(job bigint, job_lease bigint, worker_id text, result text, ran_for float8)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    at CONSTANT float8 := extract(epoch FROM clock_timestamp());
    bytes CONSTANT bytea := decode(result, 'base64');
    was record;
BEGIN
    IF length(bytes) > 1048576 OR NOT (ran_for >= 0 AND ran_for <= 315360000) THEN
        RAISE EXCEPTION 'result: at most 1048576 bytes are allowed; ran_for: 0 to 315360000 seconds'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM job_live AS l
    WHERE l.seq = ANY (ARRAY[job]) AND l.lease = job_lease AND l.state + 0 = 3 AND NOT l.cancel
      AND l.worker + 0 = (SELECT w.id FROM worker_name AS w WHERE w.name = worker_id)
    RETURNING l.seq, l.version, l.attempt, l.retry_count, l.queue, l.worker, l.lease, l.run_at, l.started_at
    INTO was;
    IF NOT FOUND THEN
        RETURN coalesce(
            (SELECT CASE WHEN l.cancel THEN 'cancelled' WHEN l.state = 2 THEN 'held' END FROM job_live AS l
             WHERE l.seq = ANY (ARRAY[job]) AND l.lease = job_lease),
            (SELECT 'held' FROM job_plain_of(job) AS p WHERE p.lease = job_lease),
            'stale');
    END IF;
    INSERT INTO job_ended (seq, completed_at, started_at, run_at, lease, queue, version, attempt, retry_count,
                           worker, state, reason, cancel, result)
    VALUES (was.seq, at, least(was.started_at, at - ran_for), was.run_at, was.lease, was.queue,
            was.version + 1, was.attempt, was.retry_count, was.worker, 4, 4, false, bytes);
    INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason)
    VALUES (was.seq, pg_current_xact_id()::text::bigint, at, was.version + 1, was.attempt, was.worker, 3, 4, 4);
    INSERT INTO queue_tally (queue, running, done, succeeded, run_seconds, layout)
    VALUES (was.queue, -1, 1, 1, ran_for, 3);
    PERFORM pg_notify('jobqueue', '[0,2,null]') WHERE current_setting('jobqueue.notify', true) IS DISTINCT FROM 'off';
    RETURN 'done';
END $$;

REVOKE ALL ON FUNCTION jq.submit, jq.submit_jobs, jq.complete FROM PUBLIC;

-- The functions find the tables of this job queue and nothing of the caller's.
DO $$
DECLARE
    home CONSTANT text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'job_record'::regclass);
    name regprocedure;
BEGIN
    FOR name IN SELECT oid FROM pg_proc WHERE pronamespace = 'jq'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %s, pg_temp', name, home);
        EXECUTE format('ALTER FUNCTION %s SET enable_seqscan = off', name);
    END LOOP;
END $$;
