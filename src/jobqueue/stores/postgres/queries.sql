-- Named statements. A parameter called "now" is the time to use, or NULL for the database's own
-- clock. Statements over many jobs take arrays (numbers and ids as text: see statements.py) with one
-- entry for each job. Where rows are locked, the entries are in the order of seq: two writers that
-- lock in one order cannot deadlock. A time by which an index is searched stands in a sub-select of
-- its own, because the clock is volatile: PostgreSQL would read it for each row of the whole index.
--
-- A live row is joined by seq = ANY (ARRAY[x]), not seq = x. A queue is often empty when autovacuum
-- counts job_live. The planner then believes that the whole index is one page, and would read all of
-- it, with all dead entries, instead of looking up ten rows. An ANY can only be looked up.

-- name: record_columns
-- The columns of a job that never change: a fragment, as the next three. {x} in a statement stands
-- for the block x.
id, queue, type, payload, labels, priority, max_retries, ttl, timeout, run_at, more, created_at

-- name: record_values
-- The values of these columns, from jobs t, queues q and clock c.
t.id, q.id, coalesce(t.type, $14), t.payload, t.labels::json, coalesce(t.priority, 0),
           coalesce(t.max_retries, q.max_retries), coalesce(t.ttl, q.ttl),
           coalesce(t.timeout, q.timeout), coalesce(t.run_at, c.now + t.delay), t.more::json, c.now

-- name: record_returned
-- What an insert of records returns. $15 is the number of their type, if all have the same type.
seq, id, queue, coalesce($15::bigint, {kind_number}) AS kind, priority, max_retries, ttl,
              timeout, run_at, created_at{key_returned}

-- name: steps
-- Step {step} of jobs {rows} that are on their first attempt, as rows for many jobs. Statements with
-- {apart} and {batch} have two forms (statements.py). One writes a row for each event. The other
-- (BATCH) writes rows for many jobs, and a row for each event of jobs on a later attempt.
, s AS (
    INSERT INTO job_steps (lo, hi, xid, at, queue, worker, step, jobs)
    SELECT lo, hi, (SELECT pg_current_xact_id()::text::bigint), at, queue, worker, {step},
           CASE WHEN count <= hi - lo
                THEN substring(bits FROM (lo & 1023)::int + 1 FOR (hi - lo)::int + 1) END
    FROM (SELECT min(seq) AS lo, max(seq) AS hi, max({at}) AS at, queue, {worker} AS worker,
                 count(*), bit_or(set_bit(0::bit(1024), (seq & 1023)::int, 1)) AS bits
          FROM {rows} WHERE {first} GROUP BY queue, 5, seq >> 10) AS g
)

-- name: ends
-- The end of jobs d that are on their first attempt, as rows for many jobs.
, b AS (
    INSERT INTO job_done (lo, hi, xid, at, queue, worker, from_state, offs, leases, began, results)
    SELECT min(seq), max(seq), (SELECT pg_current_xact_id()::text::bigint), max(now), queue, worker,
           state, array_agg((seq & 1023)::smallint), array_agg(lease), array_agg(started_at),
           array_agg(result)
    FROM d WHERE first GROUP BY queue, worker, state, part, seq >> 10
)

-- name: drawn
-- New jobs t with their numbers. All numbers are drawn before anything is inserted, so they are nearly
-- always consecutive.
d AS MATERIALIZED (
    SELECT t.*, nextval('job_record_seq_seq') AS seq FROM {new_jobs}
),

-- name: ranged
-- The ranges of the new jobs r. $17 has a number for each job, in the order in which the seqs were
-- drawn, or a single number for all: jobs that may share a range have the same number, the others 0.
-- A range has no gap and lies within a window.
x AS MATERIALIZED (
    SELECT r.*, ($17::int[])[CASE WHEN cardinality($17::int[]) = 1 THEN 1 ELSE
           width_bucket(r.seq, (SELECT array_agg(seq ORDER BY n) FROM d)) END] AS run
    FROM r
), o AS MATERIALIZED (
    SELECT * FROM x WHERE run = 0
), g AS MATERIALIZED (
    SELECT min(queue) AS queue, min(kind) AS kind, (9 - min(priority))::smallint AS prio,
           min(created_at + ttl) AS expires_at, min(created_at) AS at, min(seq) AS lo, max(seq) AS hi
    FROM (SELECT x.*, seq - row_number() OVER (ORDER BY seq) AS gap FROM x WHERE run > 0) AS y
    GROUP BY run, gap, seq >> 10
), w AS (
    INSERT INTO job_ready (hi, nxt, kind, expires_at, queue, prio)
    SELECT hi, lo, kind, expires_at, queue, prio FROM g
), s AS (
    INSERT INTO job_steps (lo, hi, xid, at, queue, step)
    SELECT lo, hi, (SELECT pg_current_xact_id()::text::bigint), at, queue, 1 FROM g
),

-- name: pending_rows
-- The live rows, first events and counts of new jobs r, which are all PENDING. {alone} are the jobs
-- without a range.
{ranges} l AS (
    INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt,
                          retry_count, max_retries, timeout, run_at, expires_at, wake_at,
                          updated_at{key_column})
    SELECT seq, id, queue, kind, 9 - priority, CASE WHEN run_at > created_at THEN 0 ELSE 1 END, 1,
           1, 1, 0, 0, max_retries, timeout, run_at, created_at + ttl,
           least(CASE WHEN run_at > created_at THEN run_at END, created_at + ttl), created_at
           {key_column}
    FROM {alone}
), e AS (
    INSERT INTO job_event (seq, xid, at, version, attempt, to_state, reason)
    SELECT seq, (SELECT pg_current_xact_id()::text::bigint), created_at, 1, 0, 1, 1
    FROM {alone}{apart}
){batch}, t AS (
    INSERT INTO queue_tally (queue, pending) SELECT queue, count(*) FROM r GROUP BY queue
)

-- name: submit
-- (new) -> PENDING, for jobs without a key in queues without a capacity. Jobs that name another queue
-- are not written; the caller sees that in the counts. The lock prevents the deletion of the queue.
-- $1 names of the queues, $2 now; of the jobs: $3 queue, $4 id, $5 type, $6 payload, $7 labels,
-- $8 priority, $9 max_retries, $10 ttl, $11 timeout, $12 run_at, $13 delay. NULL for an array: all
-- jobs have the default, which is the first of $1 for the queue, and $14 for the type. $15: the number
-- of the type, if all have one type. $16 more.
WITH home AS MATERIALIZED (
    SELECT id, name, max_retries, ttl, timeout FROM queues
    WHERE name = ANY($1::text[]) AND NOT deleted AND capacity = 0 FOR KEY SHARE
), clock AS MATERIALIZED (
    SELECT coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), {numbers} r AS (
    INSERT INTO job_record ({seq}{record_columns}) {numbered}
    SELECT {t_seq}{record_values}
    FROM {jobs_submit}
    JOIN home AS q ON q.name = coalesce(t.queue, ($1::text[])[1])
    CROSS JOIN clock AS c
    ORDER BY t.n
    RETURNING {record_returned}
), {pending_rows}
SELECT r.queue, (SELECT name FROM home WHERE home.id = r.queue), 9 - r.priority, r.kind,
       min(r.seq), count(*)
FROM r GROUP BY r.queue, r.priority, r.kind

-- name: new_submit
unnest($3::text[], $4::text::uuid[], $5::text[], $6::bytea[], $7::text[], $8::smallint[],
       $9::int[], $10::float8[], $11::float8[], $12::float8[], $13::float8[], $16::text[])
     WITH ORDINALITY AS t(queue, id, type, payload, labels, priority, max_retries, ttl,
                          timeout, run_at, delay, more, n)

-- name: submit_wide
-- As "submit", for many queues: $3 has the place of each job's queue in $1. Hash joins are off (see
-- the settings of the connections), so a join would compare every job with every queue. Therefore the
-- queue of a job is looked up in arrays; width_bucket is a binary search.
WITH home AS MATERIALIZED (
    SELECT n.place::int, q.id, q.max_retries, q.ttl, q.timeout
    FROM unnest($1::text[]) WITH ORDINALITY AS n(name, place) JOIN queues AS q ON q.name = n.name
    WHERE NOT q.deleted AND q.capacity = 0 FOR KEY SHARE OF q
), h AS MATERIALIZED (
    SELECT array_agg(place ORDER BY place) AS place, array_agg(id ORDER BY place) AS id,
           array_agg(max_retries ORDER BY place) AS max_retries,
           array_agg(ttl ORDER BY place) AS ttl, array_agg(timeout ORDER BY place) AS timeout
    FROM home
), clock AS MATERIALIZED (
    SELECT coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), {numbers} r AS (
    INSERT INTO job_record ({seq}{record_columns}) {numbered}
    SELECT {t_seq}{record_values}
    FROM {jobs_submit_wide}
    CROSS JOIN h
    CROSS JOIN LATERAL (SELECT width_bucket(t.place, h.place) AS found) AS f
    CROSS JOIN LATERAL (
        SELECT h.id[f.found], h.max_retries[f.found], h.ttl[f.found], h.timeout[f.found]
    ) AS q(id, max_retries, ttl, timeout)
    CROSS JOIN clock AS c
    WHERE h.place[f.found] = t.place
    ORDER BY t.n
    RETURNING {record_returned}
), {pending_rows}
SELECT r.queue, ($1::text[])[(SELECT place[array_position(id, r.queue)] FROM h)], 9 - r.priority,
       r.kind, min(r.seq), count(*)
FROM r GROUP BY r.queue, r.priority, r.kind

-- name: new_submit_wide
unnest($3::text::int[], $4::text::uuid[], $5::text[], $6::bytea[], $7::text[],
       $8::smallint[], $9::int[], $10::float8[], $11::float8[], $12::float8[],
       $13::float8[], $16::text[])
     WITH ORDINALITY AS t(place, id, type, payload, labels, priority, max_retries, ttl,
                          timeout, run_at, delay, more, n)

-- name: hand_off
-- (new) -> PENDING, and at once -> ASSIGNED if the job has a slot and no job waits in the queue that
-- the slots could take; this statement checks that itself. As "submit", and $17 leases, $18 workers
-- (0 = no slot), $19 assignment timeout, $20 the types that the slots accept (NULL: all). Returns a
-- row for each job. A queue in which jobs of 20 types wait counts as busy. The waiting types are read
-- only if some job waits.
WITH RECURSIVE home AS MATERIALIZED (
    SELECT id, name, max_retries, ttl, timeout, {closed_until} AS closed_until,
           {limited} AS limited,
           NOT EXISTS (
               SELECT FROM job_live AS l WHERE l.queue = queues.id AND l.ready > 0) AS idle,
           CASE WHEN NOT EXISTS (SELECT FROM job_ready AS l WHERE l.queue = queues.id) THEN true
                WHEN $20::bigint[] IS NULL THEN false
                ELSE NOT EXISTS (
                    SELECT FROM generate_series(0, 9) AS p CROSS JOIN unnest($20::bigint[]) AS k
                    WHERE (SELECT hi FROM job_ready AS m WHERE m.queue = queues.id AND m.prio = p
                           AND m.kind = k LIMIT 1) IS NOT NULL) END AS no_range
    FROM queues
    WHERE name = ANY($1::text[]) AND NOT deleted AND capacity = 0 FOR KEY SHARE
), waiting AS (
    SELECT n.*, 1 AS nth FROM home AS h CROSS JOIN LATERAL (
        SELECT queue, prio, ready, kind FROM job_live WHERE queue = h.id AND ready > 0
        ORDER BY queue, prio, ready, kind LIMIT 1) AS n
    UNION ALL
    SELECT n.*, w.nth + 1 FROM waiting AS w CROSS JOIN LATERAL (
        SELECT queue, prio, ready, kind FROM job_live
        WHERE ready > 0 AND (queue, prio, ready, kind) > (w.queue, w.prio, w.ready, w.kind)
          AND queue <= w.queue
        ORDER BY queue, prio, ready, kind LIMIT 1) AS n
    WHERE w.kind <> ALL ($20::bigint[]) AND w.nth < 20
), clock AS MATERIALIZED (
    SELECT coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), t AS MATERIALIZED (
    SELECT * FROM unnest($3::text[], $4::text::uuid[], $5::text[], $6::bytea[], $7::text[],
                         $8::smallint[], $9::int[], $10::float8[], $11::float8[], $12::float8[],
                         $13::float8[], $16::text[], $17::text::bigint[], $18::text::int[])
    WITH ORDINALITY AS t(queue, id, type, payload, labels, priority, max_retries, ttl, timeout,
                         run_at, delay, more, lease, worker, n)
), r AS (
    INSERT INTO job_record ({record_columns})
    SELECT {record_values}
    FROM t JOIN home AS q ON q.name = coalesce(t.queue, ($1::text[])[1]) CROSS JOIN clock AS c
    ORDER BY t.n
    RETURNING {record_returned}
), g AS MATERIALIZED (
    SELECT r.*, h.name, t.lease, t.worker,
           t.lease > 0 AND h.closed_until <= r.created_at AND NOT h.limited AND h.no_range
           AND (h.idle OR NOT EXISTS (
               SELECT FROM waiting AS w WHERE w.queue = h.id
               AND (coalesce(w.kind = ANY ($20::bigint[]), true) OR w.nth = 20))) AS given
    FROM r JOIN t ON t.id = r.id JOIN home AS h ON h.id = r.queue
), l AS (
    INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt,
                          retry_count, max_retries, timeout, run_at, expires_at, wake_at,
                          updated_at, lease, worker, due)
    SELECT seq, id, queue, kind, 9 - priority,
           CASE WHEN given OR run_at > created_at THEN 0 ELSE 1 END,
           CASE WHEN given THEN 2 ELSE 1 END, CASE WHEN given THEN 2 ELSE 1 END,
           CASE WHEN given THEN 2 ELSE 1 END, CASE WHEN given THEN 1 ELSE 0 END, 0, max_retries,
           timeout, run_at, created_at + ttl,
           CASE WHEN NOT given THEN
               least(CASE WHEN run_at > created_at THEN run_at END, created_at + ttl) END,
           created_at, CASE WHEN given THEN lease END, CASE WHEN given THEN worker END,
           CASE WHEN given THEN created_at + $19::float8 END
    FROM g
), e AS (
    INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason)
    SELECT g.seq, (SELECT pg_current_xact_id()::text::bigint), g.created_at, v.step, v.step - 1,
           CASE WHEN v.step = 2 THEN g.worker END, v.from_state, v.step, v.step
    FROM g JOIN (VALUES (1, NULL::smallint), (2, 1::smallint)) AS v(step, from_state)
         ON v.step = 1 OR g.given
), c AS (
    INSERT INTO queue_tally (queue, pending, assigned)
    SELECT queue, count(*) FILTER (WHERE NOT given), count(*) FILTER (WHERE given)
    FROM g GROUP BY queue
)
SELECT id, seq, queue, name, 9 - priority, kind, given, lease, max_retries, timeout, ttl,
       created_at
FROM g

-- name: handed_off
-- After a hand-off whose answer was lost: the jobs that it assigned.
SELECT l.id, l.seq, l.queue, q.name, l.prio, l.kind, true, l.lease, l.max_retries, l.timeout,
       r.ttl, r.created_at
FROM job_live AS l JOIN job_record AS r ON r.seq = l.seq JOIN queues AS q ON q.id = l.queue
WHERE l.worker = ANY ($1::int[]) AND l.lease = ANY ($2::bigint[])

-- name: homes
-- The queues of jobs with a key or a capacity. The lock prevents the deletion of these queues.
SELECT id, name, capacity FROM queues
WHERE name = ANY($1::text[]) AND NOT deleted ORDER BY id FOR KEY SHARE

-- name: bounded_homes
-- A bounded queue admits one batch at a time.
SELECT id, name, capacity FROM queues WHERE id = ANY($1::int[]) ORDER BY id FOR NO KEY UPDATE

-- name: take_keys
-- Gives keys to jobs, in the order of the keys, and returns the given ones. An expired key is replaced.
-- A key is not given while it is valid, or while the equal key of all callers ($7, or null) is valid.
-- $8 has SHA-256 hashes of the same data, which SQL functions can compute. The statement waits at most $9
-- milliseconds for an open
-- transaction that has the same key.
INSERT INTO job_key AS k (queue, key, id, expires_at, fingerprint, sha256)
SELECT t.queue, t.key, t.id, $5::float8 + c.now, t.fingerprint, t.sha256
FROM unnest($1::int[], $2::text[], $3::uuid[], $4::bytea[], $7::text[], $8::bytea[])
     AS t(queue, key, id, fingerprint, shared, sha256)
CROSS JOIN (SELECT set_config('lock_timeout', $9::text, true)) AS w
CROSS JOIN (SELECT coalesce($6::float8, extract(epoch FROM clock_timestamp())::float8) AS now) AS c
-- A scalar subquery: it is looked up by the key, where NOT EXISTS may read the whole table.
WHERE t.shared IS NULL OR (SELECT s.id FROM job_key AS s WHERE s.queue = t.queue
                           AND s.key = t.shared AND s.expires_at > c.now) IS NULL
ORDER BY t.queue, t.key
ON CONFLICT (queue, key) DO UPDATE
SET id = excluded.id, expires_at = excluded.expires_at, fingerprint = excluded.fingerprint,
    sha256 = excluded.sha256
WHERE k.expires_at <= excluded.expires_at - $5::float8
RETURNING queue, key

-- name: read_keys
-- The job that has a key: its own, or else the equal key that all callers share ($3, or null). $4 now.
SELECT t.queue, t.key, k.id, k.fingerprint
FROM unnest($1::int[], $2::text[], $3::text[]) AS t(queue, key, shared)
CROSS JOIN LATERAL (
    SELECT id, fingerprint FROM job_key WHERE queue = t.queue AND key IN (t.key, t.shared)
    AND expires_at > coalesce($4::float8, extract(epoch FROM clock_timestamp())::float8)
    ORDER BY key = t.key DESC LIMIT 1) AS k

-- name: free_keys
DELETE FROM job_key WHERE (queue, key) IN (SELECT * FROM unnest($1::int[], $2::text[]))

-- name: lock_unique
-- The numbers come in their order, so that two submits cannot deadlock. The wait is that for a batch of
-- another server, or of this one.
SELECT pg_advisory_xact_lock(1970169441, lock) FROM unnest($1::int[]) AS lock

-- name: unique_holders
-- The jobs that were accepted last with unique keys, where they are still there. $3 now.
SELECT u.queue, u.key, u.id, u.seq, r.created_at, coalesce(l.state, e.state),
       coalesce($3::float8, extract(epoch FROM clock_timestamp())::float8)
FROM unnest($1::int[], $2::text[]) AS t(queue, key)
JOIN job_unique AS u ON u.queue = t.queue AND u.key = t.key
CROSS JOIN LATERAL (SELECT * FROM job_record WHERE seq = ANY (ARRAY[u.seq]) OFFSET 0) AS r
LEFT JOIN LATERAL (SELECT * FROM job_live_of(r.seq) OFFSET 0) AS l ON true
LEFT JOIN LATERAL job_end_of(r.seq) AS e ON true

-- name: put_unique
-- The numbers of the jobs are $4 or higher, and were drawn by this transaction.
INSERT INTO job_unique AS u (queue, key, id, seq, looked_at)
SELECT t.queue, t.key, t.id, r.seq,
       coalesce($5::float8, extract(epoch FROM clock_timestamp())::float8)
FROM unnest($1::int[], $2::text[], $3::text[]::uuid[]) AS t(queue, key, id)
CROSS JOIN LATERAL (
    SELECT seq FROM job_record
    WHERE (seq >> 20) = ANY (ARRAY[$4::bigint >> 20, ($4::bigint >> 20) + 1]) AND id = t.id LIMIT 1) AS r
ORDER BY t.queue, t.key
ON CONFLICT (queue, key) DO UPDATE
SET id = excluded.id, seq = excluded.seq, looked_at = excluded.looked_at

-- name: tidy_unique
-- Looks at $1 rows that nobody has looked at for the longest time: those of removed jobs are deleted. A
-- row counts only as this snapshot has it: another submit may give the key to a job that the snapshot
-- lacks, and its row must stay.
WITH old AS MATERIALIZED (
    SELECT u.queue, u.key, u.seq,
           EXISTS (SELECT FROM job_record AS r WHERE r.seq = ANY (ARRAY[u.seq])) AS there
    FROM job_unique AS u ORDER BY u.looked_at LIMIT $1
), mine AS MATERIALIZED (
    SELECT u.queue, u.key, old.there FROM job_unique AS u
    JOIN old ON old.queue = u.queue AND old.key = u.key AND old.seq = u.seq
    FOR UPDATE OF u SKIP LOCKED
), gone AS (
    DELETE FROM job_unique AS u USING mine
    WHERE NOT mine.there AND u.queue = mine.queue AND u.key = mine.key
)
UPDATE job_unique AS u
SET looked_at = coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8)
FROM mine WHERE mine.there AND u.queue = mine.queue AND u.key = mine.key

-- name: pending
SELECT coalesce(sum(pending), 0)::bigint FROM queue_tally WHERE queue = $1

-- name: submit_long
-- As "submit", with keys, into queues that are locked already. $1 now; of the jobs: $2 queue id,
-- $3 id, $4 type, $5 payload, $6 labels, $7 priority, $8 max_retries, $9 ttl, $10 timeout,
-- $11 run_at, $12 delay, $13 key, $16 more
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), {numbers} r AS (
    INSERT INTO job_record ({seq}{record_columns}, key) {numbered}
    SELECT {t_seq}{record_values}, t.key
    FROM {jobs_submit_long}
    JOIN queues AS q ON q.id = t.queue
    CROSS JOIN clock AS c
    ORDER BY t.n
    RETURNING {record_returned}
), {pending_rows}
SELECT r.queue, NULL::text, 9 - r.priority, r.kind, min(r.seq), count(*)
FROM r GROUP BY r.queue, r.priority, r.kind

-- name: new_submit_long
unnest($2::int[], $3::text::uuid[], $4::text[], $5::bytea[], $6::text[], $7::smallint[],
       $8::int[], $9::float8[], $10::float8[], $11::float8[], $12::float8[], $13::text[],
       $16::text[])
     WITH ORDINALITY AS t(queue, id, type, payload, labels, priority, max_retries, ttl,
                          timeout, run_at, delay, key, more, n)

-- name: which_exist
-- After a submit whose answer was lost: the jobs that it wrote. Only the latest parts of job_record, a
-- million numbers each, can have them.
SELECT r.id FROM unnest($1::uuid[]) AS t(id)
CROSS JOIN generate_series(greatest(0, (SELECT max(seq) FROM job_record) - 4194304) >> 20,
                           (SELECT max(seq) FROM job_record) >> 20) AS s(stretch)
JOIN job_record AS r ON (r.seq >> 20) = s.stretch AND r.id = t.id

-- name: heads
-- A full look: each queue, priority, ready (3: in a range) and type with a claimable job, and the
-- number of the first such job. The recursion jumps from one type to the next, so that a long queue
-- costs no more than a short one. After $1 types of a queue, priority and ready it skips the rest.
WITH RECURSIVE head AS (
    (SELECT queue, prio, ready, kind, seq, 1 AS nth FROM job_live WHERE ready > 0
     ORDER BY queue, prio, ready, kind, seq LIMIT 1)
    UNION ALL
    SELECT n.*, CASE WHEN (n.queue, n.prio, n.ready) = (h.queue, h.prio, h.ready)
                THEN h.nth + 1 ELSE 1 END
    FROM head AS h CROSS JOIN LATERAL (
        SELECT queue, prio, ready, kind, seq FROM job_live
        WHERE ready > 0 AND (queue, prio, ready, kind)
              > (h.queue, h.prio, h.ready,
                 CASE WHEN h.nth < $1 THEN h.kind ELSE 9223372036854775807 END)
        ORDER BY queue, prio, ready, kind, seq LIMIT 1) AS n
), range AS (
    (SELECT queue, prio, kind, nxt, 1 AS nth FROM job_ready ORDER BY queue, prio, kind, hi LIMIT 1)
    UNION ALL
    SELECT n.*, CASE WHEN (n.queue, n.prio) = (h.queue, h.prio) THEN h.nth + 1 ELSE 1 END
    FROM range AS h CROSS JOIN LATERAL (
        SELECT queue, prio, kind, nxt FROM job_ready
        WHERE (queue, prio, kind)
              > (h.queue, h.prio, CASE WHEN h.nth < $1 THEN h.kind ELSE 9223372036854775807 END)
        ORDER BY queue, prio, kind, hi LIMIT 1) AS n
)
SELECT queue, prio, ready, kind, seq FROM head
UNION ALL SELECT queue, prio, 3, kind, nxt FROM range

-- name: heads_after
-- As "heads", of the given places ($1 queue, $2 prio, $3 ready): of each place up to $5 types, from
-- the type $4 on.
WITH RECURSIVE head AS (
    SELECT n.*, 1 AS nth
    FROM unnest($1::int[], $2::smallint[], $3::smallint[]) AS s(queue, prio, ready)
    CROSS JOIN LATERAL (
        SELECT queue, prio, ready, kind, seq FROM job_live
        WHERE ready > 0 AND queue = s.queue AND prio = s.prio AND ready = s.ready
          AND kind >= $4::bigint
        ORDER BY queue, prio, ready, kind, seq LIMIT 1) AS n
    UNION ALL
    SELECT n.*, h.nth + 1 FROM head AS h CROSS JOIN LATERAL (
        SELECT queue, prio, ready, kind, seq FROM job_live
        WHERE ready > 0 AND queue = h.queue AND prio = h.prio AND ready = h.ready
          AND kind > h.kind
        ORDER BY queue, prio, ready, kind, seq LIMIT 1) AS n
    WHERE h.nth < $5
), range AS (
    SELECT n.*, 1 AS nth
    FROM unnest($1::int[], $2::smallint[], $3::smallint[]) AS s(queue, prio, ready)
    CROSS JOIN LATERAL (
        SELECT queue, prio, kind, nxt FROM job_ready
        WHERE queue = s.queue AND prio = s.prio AND s.ready = 3 AND kind >= $4::bigint
        ORDER BY queue, prio, kind, hi LIMIT 1) AS n
    UNION ALL
    SELECT n.*, h.nth + 1 FROM range AS h CROSS JOIN LATERAL (
        SELECT queue, prio, kind, nxt FROM job_ready
        WHERE queue = h.queue AND prio = h.prio AND kind > h.kind
        ORDER BY queue, prio, kind, hi LIMIT 1) AS n
    WHERE h.nth < $5
)
SELECT queue, prio, ready, kind, seq FROM head
UNION ALL SELECT queue, prio, 3, kind, nxt FROM range

-- name: heads_of
-- As "heads", of the given types ($1 queue, $2 prio, $3 type). For BETWEEN see "candidates".
SELECT k.queue, k.prio, s.ready, k.kind, n.seq
FROM unnest($1::int[], $2::smallint[], $3::bigint[]) AS k(queue, prio, kind)
CROSS JOIN (VALUES (1::smallint), (2::smallint)) AS s(ready)
CROSS JOIN LATERAL (
    SELECT l.seq FROM job_live AS l
    WHERE l.queue = k.queue AND l.prio = k.prio AND l.ready = s.ready AND l.ready > 0
      AND l.kind BETWEEN k.kind AND k.kind
    ORDER BY l.queue, l.prio, l.ready, l.kind, l.seq LIMIT 1) AS n
UNION ALL
SELECT k.queue, k.prio, 3, k.kind, n.nxt
FROM unnest($1::int[], $2::smallint[], $3::bigint[]) AS k(queue, prio, kind)
CROSS JOIN LATERAL (
    SELECT l.nxt FROM job_ready AS l
    WHERE l.queue = k.queue AND l.prio = k.prio AND l.kind BETWEEN k.kind AND k.kind
    ORDER BY l.queue, l.prio, l.kind, l.hi LIMIT 1) AS n

-- name: waiting_types
-- The number of claimable jobs of each type, of the queue $1 or of all; counts end at $2. The name of a
-- type is in the record of its first job. For BETWEEN see "candidates".
WITH RECURSIVE head AS (
    (SELECT queue, prio, ready, kind, seq FROM job_live
     WHERE ready > 0 AND queue >= coalesce((SELECT id FROM queues WHERE name = $1), 0)
     ORDER BY queue, prio, ready, kind, seq LIMIT 1)
    UNION ALL
    SELECT n.* FROM head AS h CROSS JOIN LATERAL (
        SELECT queue, prio, ready, kind, seq FROM job_live
        WHERE ready > 0 AND (queue, prio, ready, kind) > (h.queue, h.prio, h.ready, h.kind)
          AND queue <= coalesce((SELECT id FROM queues WHERE name = $1), 2147483647)
        ORDER BY queue, prio, ready, kind, seq LIMIT 1) AS n
), range AS (
    (SELECT queue, prio, kind, nxt FROM job_ready
     WHERE queue >= coalesce((SELECT id FROM queues WHERE name = $1), 0)
     ORDER BY queue, prio, kind, hi LIMIT 1)
    UNION ALL
    SELECT n.* FROM range AS h CROSS JOIN LATERAL (
        SELECT queue, prio, kind, nxt FROM job_ready
        WHERE (queue, prio, kind) > (h.queue, h.prio, h.kind)
          AND queue <= coalesce((SELECT id FROM queues WHERE name = $1), 2147483647)
        ORDER BY queue, prio, kind, hi LIMIT 1) AS n
)
SELECT q.name, r.type, least(sum(c.jobs), $2)::bigint
FROM (
    SELECT h.queue, h.seq, x.jobs FROM head AS h CROSS JOIN LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT FROM job_live AS l WHERE l.queue = h.queue AND l.prio = h.prio
            AND l.ready = h.ready AND l.ready > 0 AND l.kind BETWEEN h.kind AND h.kind
            ORDER BY l.queue, l.prio, l.ready, l.kind, l.seq LIMIT $2) AS y) AS x
    UNION ALL
    SELECT h.queue, h.nxt, x.jobs FROM range AS h CROSS JOIN LATERAL (
        SELECT sum(jobs) AS jobs FROM (
            SELECT l.hi - l.nxt + 1 AS jobs FROM job_ready AS l
            WHERE l.queue = h.queue AND l.prio = h.prio AND l.kind BETWEEN h.kind AND h.kind
            ORDER BY l.queue, l.prio, l.kind, l.hi LIMIT $2) AS y) AS x
) AS c
JOIN queues AS q ON q.id = c.queue AND NOT q.deleted
JOIN job_record AS r ON r.seq = c.seq
WHERE $1::text IS NULL OR q.name = $1
GROUP BY q.name, r.type

-- name: read_queues
-- $1 now.
SELECT id, name,
       {closed_until} > coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8),
       deleted, (SELECT layout FROM instance), priority_weights::text, more::text, retry_profile,
       retry_base, retry_max, retry_jitter
FROM queues

-- name: candidates
-- Jobs that may be claimed next, without locks. For each head ($1 queue, $2 prio, $3 type, $4 floor) up
-- to $5 live rows, and ranges with up to as many jobs, each with its first number. $6 now, $7 jobs and
-- first numbers of ranges to leave out. The condition on the type is a BETWEEN: with "=", the primary
-- key would have the wanted order, too, and the planner might read it through jobs of all types.
SELECT c.queue, c.prio, c.kind, c.seq, c.attempt, 0::bigint AS hi
FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::bigint[], $5::int[])
     AS k(queue, prio, kind, floor, most)
CROSS JOIN (SELECT coalesce($6::float8, extract(epoch FROM clock_timestamp())::float8) AS now) AS t
CROSS JOIN LATERAL (
    SELECT x.queue, x.prio, x.kind, x.seq, x.attempt FROM (
        (SELECT l.queue, l.prio, l.kind, l.seq, l.attempt FROM job_live AS l
         WHERE l.queue = k.queue AND l.prio = k.prio AND l.ready = 1 AND l.ready > 0
           AND l.kind BETWEEN k.kind AND k.kind AND l.seq >= k.floor
           AND (l.expires_at IS NULL OR l.expires_at > t.now)
           AND l.seq <> ALL ($7::bigint[])
         ORDER BY l.queue, l.prio, l.ready, l.kind, l.seq LIMIT k.most)
        UNION ALL
        (SELECT l.queue, l.prio, l.kind, l.seq, l.attempt FROM job_live AS l
         WHERE l.queue = k.queue AND l.prio = k.prio AND l.ready = 2 AND l.ready > 0
           AND l.kind BETWEEN k.kind AND k.kind
           AND (l.expires_at IS NULL OR l.expires_at > t.now)
           AND l.seq <> ALL ($7::bigint[])
         ORDER BY l.queue, l.prio, l.ready, l.kind, l.seq LIMIT k.most)
    ) AS x ORDER BY x.seq LIMIT k.most
) AS c
UNION ALL
SELECT k.queue, k.prio, k.kind, c.nxt, 0, c.hi
FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::bigint[], $5::int[])
     AS k(queue, prio, kind, floor, most)
CROSS JOIN (SELECT coalesce($6::float8, extract(epoch FROM clock_timestamp())::float8) AS now) AS t
CROSS JOIN LATERAL (
    SELECT l.hi, l.nxt, l.hi - l.nxt + 1 AS jobs FROM job_ready AS l
    WHERE l.queue = k.queue AND l.prio = k.prio AND l.kind BETWEEN k.kind AND k.kind
      AND l.hi >= k.floor AND (l.expires_at IS NULL OR l.expires_at > t.now)
      AND l.nxt <> ALL ($7::bigint[])
    ORDER BY l.queue, l.prio, l.kind, l.hi LIMIT 1
) AS f
CROSS JOIN LATERAL (
    WITH RECURSIVE range AS (
        SELECT f.hi, f.nxt, f.jobs
        UNION ALL
        SELECT n.hi, n.nxt, g.jobs + n.hi - n.nxt + 1
        FROM range AS g CROSS JOIN LATERAL (
            SELECT l.hi, l.nxt FROM job_ready AS l
            WHERE l.queue = k.queue AND l.prio = k.prio AND l.kind BETWEEN k.kind AND k.kind
              AND l.hi > g.hi AND (l.expires_at IS NULL OR l.expires_at > t.now)
              AND l.nxt <> ALL ($7::bigint[])
            ORDER BY l.queue, l.prio, l.kind, l.hi LIMIT 1) AS n
        WHERE g.jobs < k.most
    )
    SELECT hi, nxt FROM range
) AS c

-- name: assign
-- PENDING -> ASSIGNED. $1 seq and $2 attempt of the candidates in claim order, $3 how many are
-- wanted, $4 leases, $5 workers, $6 assignment timeout, $7 now. Left out are jobs that are locked or
-- were changed since they were read, and jobs of a queue that was paused or limited since then. With
-- limits ($8 queues), the caller holds the locks of these queues and has counted (limiting.py). $9 are
-- those queues in which keys count, and $10 the key of each candidate.
WITH clock AS MATERIALIZED (
    SELECT coalesce($7::float8, extract(epoch FROM clock_timestamp())::float8) AS now,
           $4::text::bigint[] AS leases, $5::text::int[] AS workers
), won AS MATERIALIZED (
    SELECT l.seq FROM unnest($1::text::bigint[], $2::text::int[])
         WITH ORDINALITY AS c(seq, attempt, n)
    JOIN job_live AS l ON l.seq = ANY (ARRAY[c.seq])
    WHERE l.ready + 0 > 0 AND l.attempt = c.attempt
      AND l.queue + 0 = ANY (ARRAY(
          SELECT id FROM queues
          WHERE {closed_until} <= (SELECT now FROM clock) AND NOT deleted AND {let_through}))
      {key_as_planned}
    ORDER BY c.n LIMIT $3 FOR UPDATE OF l SKIP LOCKED
), numbered AS MATERIALIZED (
    SELECT seq, (row_number() OVER ())::int AS n FROM won
), u AS (
    UPDATE job_live AS l
    SET state = 2, ready = 0, reason = 2, attempt = l.attempt + 1, version = l.version + 1,
        lease = c.leases[w.n], worker = c.workers[w.n], wake_at = NULL,
        due = c.now + $6::float8, updated_at = c.now
    FROM numbered AS w CROSS JOIN clock AS c WHERE l.seq = ANY (ARRAY[w.seq])
    RETURNING l.seq, l.queue, l.prio, l.version, l.attempt, l.lease, l.worker, l.retry_count,
              l.max_retries, l.timeout, l.expires_at - c.now AS expires_in, l.updated_at, l.deaths,
              w.n
), e AS (
    INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason)
    SELECT seq, (SELECT pg_current_xact_id()::text::bigint), updated_at, version, attempt, worker,
           1, 2, 2
    FROM u{apart}
){batch}, t AS (
    INSERT INTO queue_tally (queue, pending, assigned)
    SELECT queue, -count(*), count(*) FROM u GROUP BY queue
)
SELECT u.n, u.seq, r.id, u.queue, r.type, r.payload, u.attempt, u.lease, u.prio, u.retry_count,
       u.max_retries, r.created_at, u.timeout, u.expires_in, r.labels::text, r.more::text, u.deaths
FROM u JOIN job_record AS r ON r.seq = u.seq

-- name: lock_limits
-- Waits for the locks of the queues $2, in order, at most as long as $1 says. One claim at a time counts
-- against the limits of a queue.
WITH t AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true) AS set)
SELECT pg_advisory_xact_lock(1785818221, q.id)
FROM t CROSS JOIN unnest($2::int[]) AS q(id) WHERE t.set IS NOT NULL

-- name: limit_state
-- The number of held jobs of each queue, the state of its bucket, and the time. $1 queues, $2 now.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8) AS now
)
SELECT q.id, coalesce((SELECT sum(assigned + running) FROM queue_tally AS t WHERE t.queue = q.id), 0)::bigint,
       coalesce((SELECT full_at FROM queue_bucket AS b WHERE b.queue = q.id AND b.key = 0), 0)::float8,
       c.now
FROM unnest($1::int[]) AS q(id) CROSS JOIN clock AS c

-- name: key_state
-- Of queues $1: the number of held jobs of each key; and the states of the buckets of keys $2.
SELECT queue, ckey, count(*), NULL::float8 FROM job_live
WHERE queue = ANY ($1::int[]) AND worker IS NOT NULL AND ckey IS NOT NULL GROUP BY queue, ckey
UNION ALL
SELECT b.queue, b.key, NULL, b.full_at FROM unnest($1::int[]) AS q(id)
CROSS JOIN unnest($2::bigint[]) AS k(key) JOIN queue_bucket AS b ON b.queue = q.id AND b.key = k.key

-- name: key_lines
-- Of each queue $1, key, priority, ready and type, the number of the first claimable job: up to $3 of a
-- queue, from the key $2 on. The recursion jumps from one to the next, as in "heads".
WITH RECURSIVE line AS (
    SELECT n.*, 1 AS nth FROM unnest($1::int[]) AS q(id) CROSS JOIN LATERAL (
        SELECT queue, ckey, prio, ready, kind, seq FROM job_live
        WHERE ready > 0 AND ckey IS NOT NULL AND queue = q.id AND ckey >= $2::bigint
        ORDER BY queue, ckey, prio, ready, kind, seq LIMIT 1) AS n
    UNION ALL
    SELECT n.*, l.nth + 1 FROM line AS l CROSS JOIN LATERAL (
        SELECT queue, ckey, prio, ready, kind, seq FROM job_live
        WHERE ready > 0 AND ckey IS NOT NULL AND queue = l.queue
          AND (ckey, prio, ready, kind) > (l.ckey, l.prio, l.ready, l.kind)
        ORDER BY queue, ckey, prio, ready, kind, seq LIMIT 1) AS n
    WHERE l.nth < $3
)
SELECT queue, ckey, prio, ready, kind, seq FROM line

-- name: key_states
-- Of up to $3 keys with claimable jobs in the queue $1, or of the key $4 alone: the key, its held and its
-- claimable jobs, the latter counted up to $2, the state of its bucket, and the time. $5 now. The text of
-- a key is in the record of its first job.
WITH RECURSIVE q AS MATERIALIZED (
    SELECT id FROM queues WHERE name = $1 AND NOT deleted
), line AS (
    SELECT n.*, 1 AS nth FROM q CROSS JOIN LATERAL (
        SELECT queue, ckey, seq FROM job_live
        WHERE ready > 0 AND ckey IS NOT NULL AND queue = q.id
          AND ckey >= coalesce($4::bigint, -9223372036854775808)
        ORDER BY queue, ckey, prio, ready, kind, seq LIMIT 1) AS n
    UNION ALL
    SELECT n.*, l.nth + 1 FROM line AS l CROSS JOIN LATERAL (
        SELECT queue, ckey, seq FROM job_live
        WHERE ready > 0 AND ckey IS NOT NULL AND queue = l.queue AND ckey > l.ckey
        ORDER BY queue, ckey, prio, ready, kind, seq LIMIT 1) AS n
    WHERE l.nth < $3 AND $4::bigint IS NULL
)
SELECT r.more ->> 'concurrency_key',
       (SELECT count(*) FROM job_live AS h WHERE h.queue = l.queue AND h.ckey = l.ckey
        AND h.ckey IS NOT NULL AND h.worker IS NOT NULL),
       (SELECT count(*) FROM (
            SELECT FROM job_live AS w WHERE w.queue = l.queue AND w.ckey BETWEEN l.ckey AND l.ckey
            AND w.ckey IS NOT NULL AND w.ready > 0
            ORDER BY w.queue, w.ckey, w.prio, w.ready, w.kind, w.seq LIMIT $2) AS x),
       coalesce((SELECT full_at FROM queue_bucket AS b
                 WHERE b.queue = l.queue AND b.key = l.ckey), 0)::float8,
       coalesce($5::float8, extract(epoch FROM clock_timestamp())::float8)
FROM line AS l JOIN job_record AS r ON r.seq = l.seq
WHERE l.ckey = coalesce($4::bigint, l.ckey)

-- name: key_candidates
-- As "candidates", of the lines $1 queue, $2 key, $3 prio, $4 ready, $5 type, from $6 on, of each at most
-- $7. $8 now, $9 jobs to leave out. Each with the place of its line.
SELECT k.n, c.seq, c.attempt
FROM unnest($1::int[], $2::bigint[], $3::smallint[], $4::smallint[], $5::bigint[], $6::bigint[],
            $7::int[]) WITH ORDINALITY AS k(queue, ckey, prio, ready, kind, floor, most, n)
CROSS JOIN (SELECT coalesce($8::float8, extract(epoch FROM clock_timestamp())::float8) AS now) AS t
CROSS JOIN LATERAL (
    SELECT l.seq, l.attempt FROM job_live AS l
    WHERE l.queue = k.queue AND l.ckey BETWEEN k.ckey AND k.ckey AND l.ckey IS NOT NULL
      AND l.prio = k.prio AND l.ready = k.ready AND l.ready > 0 AND l.kind BETWEEN k.kind AND k.kind
      AND l.seq >= k.floor AND (l.expires_at IS NULL OR l.expires_at > t.now)
      AND l.seq <> ALL ($9::bigint[])
    ORDER BY l.queue, l.ckey, l.prio, l.ready, l.kind, l.seq LIMIT k.most) AS c

-- name: expire_buckets
-- Buckets that are full, without waiting for a claim that writes them.
DELETE FROM queue_bucket AS b USING (
    SELECT queue, key FROM queue_bucket
    WHERE full_at <= (SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8))
    FOR UPDATE SKIP LOCKED) AS f
WHERE b.queue = f.queue AND b.key = f.key

-- name: limited_queues
-- The queues that have limits; $1 the name of one of them, or NULL.
SELECT id, name FROM queues
WHERE NOT deleted AND {limited} AND ($1::text IS NULL OR name = $1) ORDER BY name

-- name: shorten_buckets
-- Without the locks of the queues: a claim that has them may write at the same time.
UPDATE queue_bucket AS b SET full_at = least(b.full_at, t.full_at)
FROM unnest($1::int[], $2::bigint[], $3::float8[]) AS t(queue, key, full_at)
WHERE b.queue = t.queue AND b.key = t.key

-- name: put_buckets
INSERT INTO queue_bucket (queue, key, full_at)
SELECT * FROM unnest($1::int[], $2::bigint[], $3::float8[]) AS t(queue, key, full_at)
ON CONFLICT (queue, key) DO UPDATE SET full_at = excluded.full_at

-- name: claimed
-- After a claim whose answer was lost: the jobs that it assigned.
SELECT ($2::bigint[] @> ARRAY[l.lease])::int, l.seq, r.id, l.queue, r.type, r.payload, l.attempt,
       l.lease, l.prio, l.retry_count, l.max_retries, r.created_at, l.timeout,
       l.expires_at - coalesce($3::float8, extract(epoch FROM clock_timestamp())::float8),
       r.labels::text, r.more::text, l.deaths
FROM job_live AS l JOIN job_record AS r ON r.seq = l.seq
WHERE l.seq = ANY ($1::bigint[]) AND l.lease = ANY ($2::bigint[])

-- name: claim
-- As "assign", of ranges: $1 hi, $2 nxt as it was read, $3 the last number wanted. Of a range, all wanted
-- jobs are taken, or none if a faster claim has raised nxt. One part for each range and worker:
-- $4 the place of its range, $5 base of its leases (NULL: its jobs become live rows), $6 worker, $7 first
-- and $8 last number, $9 a bit for each job, $10 their number. $11 assignment timeout, $12 now.
-- {alone} is filled if jobs become live rows: $13 the place of their range, $14 seq, $15 lease, $16 worker.
WITH clock AS MATERIALIZED (
    SELECT coalesce($12::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), won AS MATERIALIZED (
    SELECT r.hi, r.queue, r.kind, r.prio, r.expires_at, c.nxt, c.upto, c.n, clock.now
    FROM clock CROSS JOIN unnest($1::bigint[], $2::bigint[], $3::bigint[])
         WITH ORDINALITY AS c(hi, nxt, upto, n)
    JOIN job_ready AS r ON r.hi = ANY (ARRAY[c.hi])
    WHERE r.nxt = c.nxt AND c.upto <= r.hi AND (r.expires_at IS NULL OR r.expires_at > clock.now)
      AND r.queue + 0 = ANY (ARRAY(
          SELECT id FROM queues
          WHERE {closed_until} <= (SELECT now FROM clock) AND NOT deleted AND {let_through}))
    FOR UPDATE OF r SKIP LOCKED
), d AS (
    DELETE FROM job_ready AS r USING won WHERE r.hi = ANY (ARRAY[won.hi]) AND won.upto = won.hi
), u AS (
    UPDATE job_ready AS r SET nxt = won.upto + 1 FROM won
    WHERE r.hi = ANY (ARRAY[won.hi]) AND won.upto < won.hi
), p AS MATERIALIZED (
    SELECT won.queue, won.now, p.*
    FROM unnest($4::int[], $5::bigint[], $6::int[], $7::bigint[], $8::bigint[], $9::varbit[],
                $10::int[]) AS p(n, base, worker, first, last, jobs, count)
    JOIN won ON won.n = p.n
), h AS (
    INSERT INTO job_held (base, lo, at, due, queue, worker, open)
    SELECT base, first >> 10 << 10, now, now + $11::float8, queue, worker, jobs
    FROM p WHERE base IS NOT NULL
), e AS (
    INSERT INTO job_steps (lo, hi, xid, at, queue, worker, step, jobs)
    SELECT first, last, (SELECT pg_current_xact_id()::text::bigint), now, queue, worker, 2,
           CASE WHEN count <= last - first THEN
               substring(jobs FROM (first & 1023)::int + 1 FOR (last - first)::int + 1) END
    FROM p
), t AS (
    INSERT INTO queue_tally (queue, pending, assigned)
    SELECT queue, -sum(upto - nxt + 1), sum(upto - nxt + 1) FROM won GROUP BY queue
){alone}
SELECT r.seq, r.id, won.queue, r.type, r.payload, won.prio, r.max_retries, r.created_at, r.timeout,
       won.expires_at - won.now, r.labels::text, r.more::text
FROM won JOIN job_record AS r ON r.seq BETWEEN won.nxt AND won.upto

-- name: claimed_alone
, l AS (
    INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt,
                          retry_count, max_retries, timeout, run_at, expires_at, lease, worker, due,
                          updated_at)
    SELECT x.seq, r.id, won.queue, won.kind, won.prio, 0, 2, 2, 2, 1, 0, r.max_retries, r.timeout,
           r.run_at, won.expires_at, x.lease, x.worker, won.now + $11::float8, won.now
    FROM unnest($13::int[], $14::bigint[], $15::bigint[], $16::int[]) AS x(n, seq, lease, worker)
    JOIN won ON won.n = x.n JOIN job_record AS r ON r.seq = ANY (ARRAY[x.seq])
)

-- name: claimed_ranges
-- After a claim of ranges whose answer was lost: the jobs that it assigned. $1 bases, $2 seq and $3 lease
-- of live rows, $4 now
SELECT r.seq, r.id, h.queue, r.type, r.payload, 9 - r.priority, r.max_retries, r.created_at, r.timeout,
       r.created_at + r.ttl - coalesce($4::float8, extract(epoch FROM clock_timestamp())::float8),
       r.labels::text, r.more::text
FROM (
    SELECT k.lo + n AS seq, k.queue FROM job_held AS k CROSS JOIN generate_series(0, 1023) AS n
    WHERE k.base = ANY ($1::bigint[]) AND get_bit(k.open, n) = 1
    UNION ALL
    SELECT seq, queue FROM job_live WHERE seq = ANY ($2::bigint[]) AND lease = ANY ($3::bigint[])
) AS h JOIN job_record AS r ON r.seq = h.seq

-- name: finish
-- ASSIGNED or RUNNING -> DONE, by the lease. Not for jobs to cancel: core.decide decides these.
-- $1 seq, $2 lease, $3 result, $4 ran_for, $5 now, $6 the worker that must hold it, $7 part of the
-- batch: results of different parts do not share a row.
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), d AS (
    DELETE FROM job_live AS l
    USING unnest($1::text::bigint[], $2::text::bigint[], $3::bytea[], $4::float8[],
                 $6::text::int[], $7::text::int[])
          AS t(seq, lease, result, ran_for, worker, part), clock AS c
    WHERE l.seq = ANY (ARRAY[t.seq]) AND l.lease = t.lease AND l.state + 0 IN (2, 3)
      AND NOT l.cancel AND (t.worker IS NULL OR l.worker + 0 = t.worker)
    RETURNING l.seq, l.id, l.state, l.version, l.attempt, l.retry_count, l.queue, l.worker,
              l.lease, l.run_at,
              CASE WHEN l.state = 2 THEN c.now - coalesce(t.ran_for, 0)
                   ELSE least(l.started_at, c.now - t.ran_for) END AS started_at,
              coalesce(t.ran_for, CASE WHEN l.state = 2 THEN 0
                                       ELSE greatest(0, c.now - l.started_at) END) AS ran_for,
              t.result, c.now, t.part, l.version = l.state AS first
), r AS (
    INSERT INTO job_ended (seq, completed_at, started_at, run_at, lease, queue, version, attempt,
                           retry_count, worker, state, reason, cancel, result)
    SELECT seq, now, started_at, run_at, lease, queue,
           version + CASE WHEN state = 2 THEN 2 ELSE 1 END, attempt, retry_count, worker, 4, 4,
           false, result
    FROM d{apart}
), e AS (
    INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason)
    SELECT d.seq, (SELECT pg_current_xact_id()::text::bigint), d.now,
           d.version + CASE WHEN d.state = 2 THEN v.step ELSE 1 END, d.attempt, d.worker,
           v.from_state, v.to_state, v.reason
    FROM d JOIN (VALUES (1, 2::smallint, 3::smallint, 3::smallint), (2, 3, 4, 4))
         AS v(step, from_state, to_state, reason) ON v.step = 2 OR d.state = 2{apart}
){batch}, t AS (
    INSERT INTO queue_tally (queue, assigned, running, done, succeeded, run_seconds)
    SELECT queue, -count(*) FILTER (WHERE state = 2), -count(*) FILTER (WHERE state = 3), count(*),
           count(*), sum(ran_for)
    FROM d GROUP BY queue
)
SELECT seq, state, id, queue, worker, ran_for FROM d

-- name: finish_held
-- ASSIGNED -> DONE, of jobs of held rows. Parts, in the order of base: $1 base, $2 window's first number,
-- $3 a bit for each job, $4 the worker that must hold them, $5 their number, $6 seconds that they ran,
-- $7 first and $8 last of the rows to write. These: from $9 to $10 of $11 offset in the window,
-- $12 ran_for, $13 result. $14 now.
-- The leases need no check, because base was computed from them. A part is written whole, or not at all.
-- In the second case the answer has the row's bits "open"; it has no row for the part if the held row is
-- gone or belongs to another worker.
WITH clock AS MATERIALIZED (
    SELECT coalesce($14::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), h AS MATERIALIZED (
    SELECT t.n, t.mask, t.jobs, t.seconds, t.a, t.b, k.base, k.lo, k.queue, k.worker, k.open
    FROM unnest($1::bigint[], $2::bigint[], $3::varbit[], $4::int[], $5::int[], $6::float8[],
                $7::int[], $8::int[])
         WITH ORDINALITY AS t(base, lo, mask, worker, jobs, seconds, a, b, n)
    JOIN job_held AS k ON k.base = ANY (ARRAY[t.base])
    WHERE k.lo + 0 = t.lo AND (t.worker IS NULL OR k.worker + 0 = t.worker)
    ORDER BY t.n FOR UPDATE OF k
), w AS MATERIALIZED (
    SELECT * FROM h WHERE open & mask = mask
), d AS (
    DELETE FROM job_held AS k USING w WHERE k.base = ANY (ARRAY[w.base]) AND w.open = w.mask
), u AS (
    UPDATE job_held AS k SET open = w.open # w.mask FROM w
    WHERE k.base = ANY (ARRAY[w.base]) AND w.open <> w.mask
), e AS (
    INSERT INTO job_done (lo, hi, xid, at, base, queue, worker, from_state, offs, began, results)
    SELECT w.lo + ($11::smallint[])[p.a], w.lo + ($11::smallint[])[p.b],
           (SELECT pg_current_xact_id()::text::bigint), c.now, w.base, w.queue, w.worker, 2,
           ($11::smallint[])[p.a:p.b],
           ARRAY(SELECT c.now - r FROM unnest(($12::float8[])[p.a:p.b]) AS r),
           ($13::bytea[])[p.a:p.b]
    FROM w CROSS JOIN clock AS c CROSS JOIN LATERAL (
        SELECT ($9::int[])[i] AS a, ($10::int[])[i] AS b FROM generate_series(w.a, w.b) AS i) AS p
), t AS (
    INSERT INTO queue_tally (queue, assigned, done, succeeded, run_seconds)
    SELECT queue, -sum(jobs), sum(jobs), sum(jobs), sum(seconds) FROM w GROUP BY queue
)
SELECT n, queue, worker, CASE WHEN open & mask <> mask THEN open END, open = mask FROM h

-- name: ids
SELECT seq, id FROM job_record WHERE seq = ANY ($1::bigint[])

-- name: start_held
-- ASSIGNED -> RUNNING, of jobs of held rows, which get live rows: $1 seq, $2 lease, $3 ran_for,
-- $4 watchdog grace, $5 now, $6 the worker that must hold it
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), t AS MATERIALIZED (
    SELECT t.* FROM unnest($1::text::bigint[], $2::text::bigint[], $3::float8[], $6::text::int[])
         AS t(seq, lease, ran_for, holder)
    JOIN job_held AS k ON k.base = ANY (ARRAY[t.lease - t.seq])
    WHERE t.holder IS NULL OR k.worker = t.holder
), {taken_out}, l AS (
    INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt,
                          retry_count, max_retries, timeout, run_at, lease, worker, started_at, due,
                          updated_at)
    SELECT o.seq, r.id, o.queue, kind_of(r.type), 9 - r.priority, 0, 3, 3, 3, 1, 0, r.max_retries,
           r.timeout, r.run_at, o.lease, o.worker, c.now - coalesce(o.ran_for, 0),
           c.now + r.timeout + $4::float8, c.now
    FROM o JOIN job_record AS r ON r.seq = ANY (ARRAY[o.seq]) CROSS JOIN clock AS c
    RETURNING seq, id, queue, version, worker, updated_at
){batch}, y AS (
    INSERT INTO queue_tally (queue, assigned, running)
    SELECT queue, -count(*), count(*) FROM l GROUP BY queue
)
SELECT seq, 2::smallint, id, queue, worker, NULL::float8 FROM l

-- name: start
-- ASSIGNED -> RUNNING, by the lease. $1 seq, $2 lease, $3 ran_for, $4 watchdog grace, $5 now,
-- $6 the worker that must hold it
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::float8, extract(epoch FROM clock_timestamp())::float8) AS now
), u AS (
    UPDATE job_live AS l
    SET state = 3, reason = 3, version = l.version + 1, expires_at = NULL,
        started_at = c.now - coalesce(t.ran_for, 0), due = c.now + l.timeout + $4::float8,
        updated_at = c.now
    FROM unnest($1::text::bigint[], $2::text::bigint[], $3::float8[], $6::text::int[])
         WITH ORDINALITY AS t(seq, lease, ran_for, worker, n), clock AS c
    WHERE l.seq = ANY (ARRAY[t.seq]) AND l.lease = t.lease AND l.state + 0 = 2
      AND (t.worker IS NULL OR l.worker + 0 = t.worker)
    RETURNING l.seq, l.id, l.queue, l.version, l.attempt, l.worker, l.updated_at
), e AS (
    INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason)
    SELECT seq, (SELECT pg_current_xact_id()::text::bigint), updated_at, version, attempt, worker,
           2, 3, 3
    FROM u{apart}
){batch}, t AS (
    INSERT INTO queue_tally (queue, assigned, running)
    SELECT queue, -count(*), count(*) FROM u GROUP BY queue
)
SELECT seq, 2::smallint, id, queue, worker, NULL::float8 FROM u

-- name: lock_live
-- Locks live rows and returns what a decision needs. Rows are left out that others have locked: a
-- transaction of a user may have ended an attempt and stay open (jq.complete).
{live_columns} ORDER BY l.seq FOR UPDATE SKIP LOCKED

-- name: look_live
-- Reads, without a lock, the live rows that other transactions have locked; columns as in "lock_live".
{live_columns}

-- name: live_columns
SELECT l.seq, l.state, l.version, l.attempt, l.retry_count, l.max_retries, l.lease,
       coalesce(l.worker, l.last_worker), l.cancel, l.deaths, l.timeout, l.run_at, l.expires_at,
       l.started_at, coalesce(l.wake_at, l.due), l.queue, l.id, l.error, l.reason, l.last_lease,
       l.prio, l.kind, coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8)
FROM job_live AS l WHERE l.seq = ANY ($1::bigint[])

-- name: of_ended
-- The columns of "lock_live" for a job that ended: a fragment.
r.seq, e.state, e.version, e.attempt, e.retry_count, r.max_retries, NULL::bigint, e.worker,
       e.cancel, 0, r.timeout, e.run_at, NULL::float8, e.started_at, NULL::float8, e.queue, r.id,
       e.error, e.reason, e.lease, 9 - r.priority, kind_of(r.type, r.more),
       coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8)

-- name: lock_ended
SELECT {of_ended}
FROM job_ended AS e JOIN job_record AS r ON r.seq = e.seq
WHERE e.seq = ANY ($1::bigint[]) ORDER BY e.seq FOR UPDATE OF e

-- name: lock_done
-- As "lock_ended", of jobs that ended in batches. Their ends never change, so they are not locked.
SELECT {of_ended}
FROM unnest($1::bigint[]) AS t(seq) JOIN job_record AS r ON r.seq = t.seq
CROSS JOIN LATERAL job_done_of(t.seq) AS e

-- name: lock_plain
-- As "lock_live", of plain jobs, but without a lock. These are jobs that got no live row, because the
-- move cannot apply to them: the row serves only to refuse the move.
SELECT p.seq, p.state, p.version, p.attempt, 0, r.max_retries, p.lease, p.worker, false, 0,
       r.timeout, r.run_at, p.expires_at, NULL::float8, p.due, p.queue, r.id, NULL::text, p.state,
       NULL::bigint, 9 - r.priority, kind_of(r.type),
       coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8)
FROM unnest($1::bigint[]) AS t(seq) JOIN job_record AS r ON r.seq = t.seq
CROSS JOIN LATERAL job_plain_of(t.seq) AS p

-- name: taken_out
-- o: those of the jobs t (seq and lease; NULL: any lease) that job_held has. Their bits are cleared.
-- The new bits are computed from the locked rows, because the statement's snapshot may be older.
f AS MATERIALIZED (
    SELECT DISTINCT k.base FROM t JOIN job_held AS k ON k.lo = ANY (ARRAY[t.seq >> 10 << 10])
    WHERE get_bit(k.open, (t.seq & 1023)::int) = 1
      AND (t.lease IS NULL OR t.lease = k.base + t.seq)
), h AS MATERIALIZED (
    SELECT base, lo, queue, worker, at, due, open FROM job_held
    WHERE base = ANY (ARRAY(SELECT base FROM f)) ORDER BY base FOR UPDATE
), o AS MATERIALIZED (
    SELECT h.*, t.* FROM h JOIN t ON h.lo = t.seq >> 10 << 10
    WHERE get_bit(h.open, (t.seq & 1023)::int) = 1
      AND (t.lease IS NULL OR t.lease = h.base + t.seq)
), m AS MATERIALIZED (
    SELECT base, open, bit_or(set_bit(0::bit(1024), (seq & 1023)::int, 1)) AS mask
    FROM o GROUP BY base, open
), d AS (
    DELETE FROM job_held AS k USING m WHERE k.base = ANY (ARRAY[m.base]) AND m.open = m.mask
), u AS (
    UPDATE job_held AS k SET open = m.open # m.mask FROM m
    WHERE k.base = ANY (ARRAY[m.base]) AND m.open <> m.mask
)

-- name: leave_held
-- Plain jobs that are ASSIGNED become live rows: $1 seq, $2 lease, or NULL where the move names none.
WITH t AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS t(seq, lease)
), {taken_out}
INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt, retry_count,
                      max_retries, timeout, run_at, expires_at, lease, worker, due, updated_at)
SELECT o.seq, r.id, o.queue, kind_of(r.type), 9 - r.priority, 0, 2, 2, 2, 1, 0, r.max_retries,
       r.timeout, r.run_at, r.created_at + r.ttl, o.base + o.seq, o.worker, o.due, o.at
FROM o JOIN job_record AS r ON r.seq = ANY (ARRAY[o.seq])
RETURNING seq, queue, prio, kind

-- name: leave_ready
-- Plain jobs that are PENDING become live rows: $1 seq. In BATCH the range is cut: the piece after the
-- last of them keeps its name (hi), each piece before one of them is a new range. In a layout without
-- ranges, all jobs of the range become live rows.
WITH f AS MATERIALIZED (
    SELECT hi, nxt, kind, expires_at, queue, prio FROM job_ready
    WHERE hi = ANY (ARRAY(SELECT (SELECT hi FROM job_ready WHERE hi BETWEEN t.seq AND (t.seq | 1023) ORDER BY hi LIMIT 1)
                          FROM unnest($1::bigint[]) AS t(seq)))
      AND EXISTS (SELECT FROM unnest($1::bigint[]) AS t(seq) WHERE t.seq BETWEEN nxt AND hi)
    ORDER BY hi FOR UPDATE{unlocked}
), o AS MATERIALIZED (
    SELECT f.*, t.seq, lag(t.seq, 1, f.nxt - 1) OVER (PARTITION BY f.hi ORDER BY t.seq) + 1 AS lo
    FROM f CROSS JOIN {leaving} AS t(seq) WHERE t.seq BETWEEN f.nxt AND f.hi
), e AS MATERIALIZED (
    SELECT hi, max(seq) AS last FROM o GROUP BY hi
), d AS (
    DELETE FROM job_ready AS k USING e WHERE k.hi = ANY (ARRAY[e.hi]) AND e.last = e.hi
), u AS (
    UPDATE job_ready AS k SET nxt = e.last + 1 FROM e
    WHERE k.hi = ANY (ARRAY[e.hi]) AND e.last < e.hi
){cut}
INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt, retry_count,
                      max_retries, timeout, run_at, expires_at, wake_at, updated_at)
SELECT o.seq, r.id, o.queue, o.kind, o.prio, 2, 1, 1, 1, 0, 0, r.max_retries, r.timeout, r.run_at,
       o.expires_at, o.expires_at, r.created_at
FROM o JOIN job_record AS r ON r.seq = ANY (ARRAY[o.seq])
RETURNING seq, queue, prio, kind

-- name: pieces
, w AS (
    INSERT INTO job_ready (hi, nxt, kind, expires_at, queue, prio)
    SELECT seq - 1, lo, kind, expires_at, queue, prio FROM o WHERE lo < seq
)

-- name: live_rows
-- The columns of a live row that a move may change: a fragment.
unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::int[], $5::int[], $6::int[], $7::bigint[],
            $8::bigint[], $9::int[], $10::int[], $11::boolean[], $12::smallint[], $13::float8[],
            $14::float8[], $15::float8[], $16::float8[], $17::float8[], $18::text[],
            $19::smallint[], $20::float8[])
     AS t(seq, state, ready, version, attempt, retry_count, lease, last_lease, worker, last_worker,
          cancel, deaths, run_at, expires_at, started_at, due, wake_at, error, reason, updated_at)

-- name: update_live
UPDATE job_live AS l
SET state = t.state, ready = t.ready, version = t.version, retry_count = t.retry_count,
    lease = t.lease, last_lease = t.last_lease, worker = t.worker, last_worker = t.last_worker,
    cancel = t.cancel, deaths = t.deaths, run_at = t.run_at, expires_at = t.expires_at,
    started_at = t.started_at, due = t.due, wake_at = t.wake_at, error = t.error,
    reason = t.reason, attempt = t.attempt, updated_at = t.updated_at
FROM {live_rows}
WHERE l.seq = ANY (ARRAY[t.seq])

-- name: end
-- -> DONE or DEAD_LETTERED.
WITH d AS (
    DELETE FROM job_live WHERE seq = ANY ($1::bigint[])
)
INSERT INTO job_ended (seq, queue, state, version, attempt, retry_count, worker, lease, run_at,
                       cancel, started_at, result, error, reason, completed_at)
SELECT *
FROM unnest($1::bigint[], $2::int[], $3::smallint[], $4::int[], $5::int[], $6::int[], $7::int[],
            $8::bigint[], $9::float8[], $10::boolean[], $11::float8[], $12::bytea[], $13::text[],
            $14::smallint[], $15::float8[])

-- name: revive
-- DEAD_LETTERED -> PENDING: the live row comes back. $1 seq, $2 version, $3 reason, $4 now
WITH d AS (
    DELETE FROM job_ended AS e
    USING unnest($1::bigint[], $2::int[], $3::smallint[]) AS t(seq, version, reason)
    WHERE e.seq = ANY (ARRAY[t.seq])
    RETURNING e.seq, e.attempt, e.started_at, t.version, t.reason
)
INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt,
                      retry_count, max_retries, timeout, started_at, updated_at, ckey)
SELECT d.seq, r.id, r.queue, kind_of(r.type, r.more), 9 - r.priority, 2, 1, d.reason, d.version,
       d.attempt, 0, r.max_retries, r.timeout, d.started_at, $4::float8, ckey_of(r.more)
FROM d JOIN job_record AS r ON r.seq = d.seq

-- name: insert_events
INSERT INTO job_event (seq, xid, at, version, attempt, worker, from_state, to_state, reason, detail,
                       started_at, due)
SELECT t.seq, (SELECT pg_current_xact_id()::text::bigint), t.at, t.version, t.attempt,
       t.worker, t.from_state, t.to_state, t.reason, t.detail, t.started_at, t.due
FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::smallint[], $6::smallint[],
            $7::smallint[], $8::text[], $9::float8[], $10::float8[], $11::float8[])
     AS t(seq, version, attempt, worker, from_state, to_state, reason, detail, started_at, due, at)

-- name: count
INSERT INTO queue_tally (queue, pending, assigned, running, done, failed, dead_lettered, succeeded,
                         unsuccessful, run_seconds)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: fold
-- Sums up the changes of counts into one row for each queue. Two servers that do this at once wait for
-- each other, and each sums up the rows that it deleted.
WITH taken AS (DELETE FROM queue_tally RETURNING *)
INSERT INTO queue_tally
SELECT queue, sum(pending), sum(assigned), sum(running), sum(done), sum(failed),
       sum(dead_lettered), sum(succeeded), sum(unsuccessful), sum(run_seconds)
FROM taken GROUP BY queue

-- name: request_cancel
-- A job whose cancelling was requested before gets no second entry in the outbox. A row that another
-- transaction has locked is left out: the transaction may be a user's, and stay open.
WITH l AS MATERIALIZED (
    SELECT * FROM job_live WHERE seq = $1 AND state = 3 FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE job_live AS j SET cancel = true FROM l WHERE j.seq = l.seq AND NOT l.cancel
    RETURNING j.seq
), o AS (
    INSERT INTO outbox (xid, seq, version, kind, at, body)
    SELECT pg_current_xact_id()::text::bigint, l.seq, l.version, 4,
           coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8),
           json_build_object('job_id', l.id, 'queue', q.name, 'version', l.version)::text
    FROM l JOIN queues AS q ON q.id = l.queue
    WHERE NOT l.cancel AND EXISTS (SELECT FROM stream)
)
SELECT l.seq, l.lease, (SELECT name FROM worker_name WHERE id = l.worker), l.state, true FROM l

-- name: due_waiting
-- The last column: the job waits only for run_at, and becomes claimable now.
WITH c AS MATERIALIZED (
    SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8) AS now
)
(SELECT seq, state, version, lease,
        state = 1 AND ready = 0 AND (expires_at IS NULL OR expires_at > (SELECT now FROM c))
 FROM job_live WHERE wake_at IS NOT NULL AND wake_at <= (SELECT now FROM c)
 ORDER BY wake_at LIMIT $2)
UNION ALL
(SELECT n, 1, 1, NULL, false
 FROM (SELECT nxt, hi FROM job_ready
       WHERE expires_at IS NOT NULL AND expires_at <= (SELECT now FROM c)
       ORDER BY expires_at LIMIT $2) AS k
 CROSS JOIN generate_series(k.nxt, k.hi) AS n LIMIT $2)

-- name: due_held
WITH c AS MATERIALIZED (
    SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8) AS now
)
(SELECT seq, state, version, lease, false
 FROM c JOIN job_live ON worker IS NOT NULL AND due <= c.now LIMIT $2)
UNION ALL
(SELECT seq, 2, 2, lease, false FROM held_job WHERE due <= (SELECT now FROM c) LIMIT $2)

-- name: held_floors
-- The lowest job that each worker holds.
SELECT worker, min(seq) FROM (
    SELECT worker, seq FROM job_live WHERE worker IS NOT NULL
    UNION ALL SELECT worker, lo FROM job_held) AS h
GROUP BY worker

-- name: held_from
-- As "held", from floors on ($1 workers, $2 floors), with the numbers of the workers, the versions of the
-- jobs and the times when they are due. OFFSET keeps the planner from merging the inner query, which
-- begins at a worker's floor. Merged, it might read the whole index with all dead entries, if the index
-- was counted while it was empty.
SELECT l.seq, l.lease, w.name, l.state, l.cancel, h.worker, l.version, l.due
FROM unnest($1::int[], $2::bigint[]) AS h(worker, floor) JOIN worker_name AS w ON w.id = h.worker
CROSS JOIN LATERAL (
    SELECT seq, lease, state, cancel, version, due FROM job_live
    WHERE worker = h.worker AND seq >= h.floor OFFSET 0) AS l
UNION ALL
SELECT l.seq, l.lease, w.name, 2, false, h.worker, 2, l.due
FROM unnest($1::int[], $2::bigint[]) AS h(worker, floor) JOIN worker_name AS w ON w.id = h.worker
CROSS JOIN LATERAL (
    SELECT seq, lease, due FROM held_job WHERE worker = h.worker AND seq >= h.floor OFFSET 0) AS l

-- name: next_wake_of
least((SELECT wake_at FROM job_live WHERE wake_at IS NOT NULL AND wake_at > c.now
       ORDER BY wake_at LIMIT 1),
      (SELECT expires_at FROM job_ready WHERE expires_at IS NOT NULL AND expires_at > c.now
       ORDER BY expires_at LIMIT 1))

-- name: next_wake
SELECT c.now, {next_wake_of}
FROM (SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8) AS now) AS c

-- name: next_due
SELECT c.now, {next_wake_of},
       least((SELECT min(due) FROM job_live WHERE worker IS NOT NULL AND due > c.now),
             (SELECT due FROM job_held WHERE due > c.now ORDER BY due LIMIT 1))
FROM (SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8) AS now) AS c

-- name: promote
-- Delayed jobs whose time has come become claimable; no transition, no version.
WITH c AS MATERIALIZED (
    SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8) AS now
)
UPDATE job_live AS l SET ready = 2, wake_at = l.expires_at
FROM (SELECT p.seq FROM job_live AS p
      WHERE p.wake_at IS NOT NULL AND p.wake_at <= (SELECT now FROM c)
        AND p.state = 1 AND p.ready = 0
        AND (p.expires_at IS NULL OR p.expires_at > (SELECT now FROM c))
      ORDER BY p.wake_at LIMIT $2 FOR UPDATE OF p SKIP LOCKED) AS t
WHERE l.seq = ANY (ARRAY[t.seq])
RETURNING l.queue, l.prio, l.kind

-- name: expire_keys
DELETE FROM job_key WHERE (queue, key) IN (
    SELECT queue, key FROM job_key
    WHERE expires_at <= (
        SELECT coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8))
    ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)

-- name: find
-- A job's number by its id. It is searched in each stretch of a million numbers, the latest first. The
-- inner limit keeps the planner from searching all stretches at once, by reading the whole table.
SELECT r.seq FROM generate_series((SELECT max(seq) FROM job_record) >> 20,
                                  (SELECT min(seq) FROM job_record) >> 20, -1) AS s(stretch)
CROSS JOIN LATERAL (
    SELECT seq FROM job_record WHERE (seq >> 20) = s.stretch AND id = $1::uuid LIMIT 1) AS r
LIMIT 1

-- name: job_columns
SELECT r.id, r.seq, coalesce(l.state, e.state), coalesce(l.version, e.version),
       coalesce(l.attempt, e.attempt), coalesce(l.retry_count, e.retry_count), r.created_at,
       coalesce(l.updated_at, e.completed_at), l.expires_at,
       (SELECT name FROM worker_name WHERE id = coalesce(l.worker, l.last_worker, e.worker)),
       coalesce(l.cancel, e.cancel), coalesce(l.started_at, e.started_at), e.completed_at,
       CASE WHEN l.state = 5 THEN l.wake_at END, e.result, coalesce(l.error, e.error),
       coalesce(l.reason, e.reason),
       CASE WHEN l.state = 3 THEN (
            SELECT json_build_array(value, text, at)::text FROM job_progress
            WHERE lease = ANY (ARRAY[l.lease])) END,
       q.name, r.type, r.payload, r.priority, r.max_retries, r.ttl, r.timeout,
       coalesce(l.run_at, e.run_at), r.key, r.labels::text, r.more::text

-- name: dead_letters
-- The newest dead letters of a queue $1 (null: of every queue) before number $2, $3 of them at most.
-- Up to $3 are read from the index of each queue: a scan by number alone would read all DONE jobs, too.
-- The condition on the queue is a range, and queue is in the order, so that no other index has this
-- order: with "queue = q.id" the planner prefers the primary key if it expects many dead letters.
SELECT e.seq, e.version, matches
FROM (SELECT d.* FROM queues AS q CROSS JOIN LATERAL (
        SELECT seq, version, reason, completed_at, error FROM job_ended
        WHERE state = 6 AND (queue, seq) < (q.id, $2::bigint) AND queue >= q.id
        ORDER BY queue DESC, seq DESC LIMIT $3) AS d
      WHERE q.name = coalesce($1::text, q.name) ORDER BY d.seq DESC LIMIT $3) AS e

-- name: describe
-- The causes of the dead letters with the numbers $1, with at most $2 characters of each error.
SELECT e.seq, e.version, r.id, q.name, r.type, e.reason, left(e.error, $2::int), e.completed_at
FROM job_ended AS e JOIN job_record AS r ON r.seq = e.seq JOIN queues AS q ON q.id = r.queue
WHERE e.seq = ANY ($1::text::bigint[]) AND e.state = 6 ORDER BY e.seq DESC

-- name: moved_on
-- Those of the jobs $1, seen at the versions $2 (0: any), that have ended or have another version. Only
-- these are returned, because most of the jobs that callers wait for have not changed.
SELECT t.seq FROM unnest($1::text::bigint[], $2::text::int[]) AS t(seq, version)
CROSS JOIN LATERAL (
    SELECT coalesce(
        (SELECT version FROM job_live WHERE seq = ANY (ARRAY[t.seq])),
        (SELECT 1 FROM (SELECT nxt FROM job_ready WHERE hi BETWEEN t.seq AND (t.seq | 1023) ORDER BY hi LIMIT 1) AS k
         WHERE nxt <= t.seq),
        (SELECT 2 FROM job_held WHERE lo = ANY (ARRAY[t.seq >> 10 << 10])
         AND get_bit(open, (t.seq & 1023)::int) = 1)) AS version OFFSET 0) AS l
WHERE l.version IS NULL OR t.version NOT IN (0, l.version)

-- name: history
SELECT r.id, e.version, e.from_state, e.to_state, e.reason, e.at, e.attempt, w.name, e.detail,
       q.name
FROM job_record AS r CROSS JOIN LATERAL job_events_of(r.seq, r.seq >> 10 << 10) AS e
JOIN queues AS q ON q.id = r.queue LEFT JOIN worker_name AS w ON w.id = e.worker
WHERE r.seq = $1 AND e.version < coalesce($2::int, e.version + 1)
ORDER BY e.version DESC LIMIT $3

-- name: snapshot
-- The transactions that have ended by now: all numbers below the first column, none from the second
-- column on, and in between all except those in the third column.
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
       ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(s) AS x)
FROM pg_current_snapshot() AS s

-- name: between
-- The condition for rows that became visible between two snapshots: $1 above and $2 open of the earlier
-- snapshot, $3 above and $4 open of the later one. Two fragments, so that each is a search in the index.
xid = ANY ($2::bigint[]) AND xid < $3::bigint AND xid <> ALL ($4::bigint[])

-- name: later
xid >= $1::bigint AND xid < $3::bigint AND xid <> ALL ($4::bigint[])

-- name: new_events
(SELECT seq, at, version, attempt, worker, from_state, to_state, reason, detail, NULL::bigint AS lo
      FROM job_event WHERE {between}
      UNION ALL
      SELECT seq, at, version, attempt, worker, from_state, to_state, reason, detail, NULL
      FROM job_event WHERE {later}
      UNION ALL
      SELECT seq, at, version, attempt, worker, from_state, to_state, reason, NULL, lo
      FROM batch_event WHERE {between}
      UNION ALL
      SELECT seq, at, version, attempt, worker, from_state, to_state, reason, NULL, lo
      FROM batch_event WHERE {later})

-- name: events_between
-- Events between two snapshots, after ($5, $6). A transaction that stays open delays only its own events.
SELECT e.seq, r.id, e.version, e.from_state, e.to_state, e.reason, e.at, e.attempt, w.name,
       e.detail, q.name
FROM {new_events} AS e
CROSS JOIN LATERAL (SELECT id, queue FROM job_record WHERE seq = e.seq OFFSET 0) AS r
JOIN queues AS q ON q.id = r.queue
LEFT JOIN worker_name AS w ON w.id = e.worker
WHERE (e.seq, e.version) > ($5::bigint, $6::int)
ORDER BY e.seq, e.version LIMIT $7

-- name: end_of_stretch
-- The last transaction of a stretch of more than $4 events. It begins at $1, ends before $2, and leaves
-- out open transactions ($3). No row if there are not that many events.
SELECT xid FROM (
    SELECT xid, sum(events) OVER (ORDER BY xid ROWS UNBOUNDED PRECEDING) AS sum FROM (
        (SELECT xid, 1 AS events FROM job_event
         WHERE xid >= $1::bigint AND xid < $2::bigint AND xid <> ALL ($3::bigint[])
         ORDER BY xid LIMIT $4::bigint + 1)
        UNION ALL
        (SELECT xid, coalesce(length(replace(jobs::text, '0', '')), hi - lo + 1) FROM job_steps
         WHERE xid >= $1::bigint AND xid < $2::bigint AND xid <> ALL ($3::bigint[])
         ORDER BY xid LIMIT $4::bigint + 1)
        UNION ALL
        (SELECT xid, cardinality(offs) * (4 - from_state) FROM job_done
         WHERE xid >= $1::bigint AND xid < $2::bigint AND xid <> ALL ($3::bigint[])
         ORDER BY xid LIMIT $4::bigint + 1)) AS e) AS e
WHERE sum > $4::bigint ORDER BY xid LIMIT 1

-- name: overtaken
-- Events of the jobs $1 up to the versions $2, written by transactions from $3 on. Also all events of
-- rows for many jobs in the windows of these jobs, written by such transactions.
SELECT e.seq, e.version, NULL::bigint AS lo
FROM unnest($1::text::bigint[], $2::text::int[]) AS k(seq, version)
JOIN job_event AS e ON e.seq = k.seq AND e.version <= k.version WHERE e.xid >= $3::bigint
UNION ALL
SELECT e.seq, e.version, e.lo
FROM (SELECT DISTINCT seq >> 10 << 10 AS first FROM unnest($1::text::bigint[]) AS k(seq)) AS w
CROSS JOIN LATERAL (
    SELECT seq, version, lo FROM batch_event
    WHERE lo BETWEEN w.first AND w.first + 1023 AND lo >> 10 = w.first >> 10 AND xid >= $3::bigint
    OFFSET 0) AS e

-- name: keys_between
-- The keys of events and outbox entries between two snapshots, after ($5, $6, $7), in the order of the
-- stream. The number of an event is 0, and "lo" is set if its row has many events. The keys are returned
-- as four arrays, which the client reads faster than very many rows.
SELECT array_agg(seq), array_agg(version), array_agg(number), array_agg(lo) FROM (
    SELECT seq, version, number, lo FROM (
        SELECT seq, version, 0::bigint AS number, lo FROM {new_events} AS e
        UNION ALL SELECT seq, version, number, NULL FROM outbox WHERE {between}
        UNION ALL SELECT seq, version, number, NULL FROM outbox WHERE {later}) AS k
    WHERE (seq, version, number) > ($5::bigint, $6::int, $7::bigint)
    ORDER BY seq, version, number LIMIT $8) AS found

-- name: changes
-- Events $1 (seq), $2 (version), $5 (lo) in this order, with all that a rebuild of their jobs needs: at
-- least one, and together up to $3 bytes. $4 now. PostgreSQL knows the size of a value without reading it.
SELECT n, id, version, from_state, to_state, reason, at, attempt, worker, detail, queue,
       started_at, due, retries, seq, created_at, key_expires_at, result, cancel, type, payload,
       priority, max_retries, ttl, timeout, run_at, key, labels, more
FROM (
    SELECT k.n, r.id, e.version, e.from_state, e.to_state, e.reason, e.at, e.attempt,
           (SELECT name FROM worker_name WHERE id = e.worker) AS worker, e.detail,
           (SELECT name FROM queues WHERE id = r.queue) AS queue,
           CASE WHEN e.to_state = 5 THEN e.started_at ELSE d.started_at END AS started_at,
           CASE WHEN e.to_state = 5 THEN coalesce(e.due, (
                SELECT l.wake_at FROM job_live AS l
                WHERE l.seq = e.seq AND l.version = e.version AND l.state = 5)) END AS due,
           CASE WHEN e.to_state = 4 THEN d.retry_count WHEN e.to_state >= 5 THEN (
                SELECT count(*) FROM job_event AS b WHERE b.seq = e.seq AND b.version < e.version
                AND b.reason = 10 AND b.version > coalesce((
                    SELECT max(m.version) FROM job_event AS m WHERE m.seq = e.seq
                    AND m.version < e.version AND m.reason = 17), 0))::int END AS retries,
           r.seq, CASE WHEN e.version = 1 OR e.to_state = 6 THEN r.type END AS type,
           CASE WHEN e.version = 1 OR e.to_state = 6 THEN r.payload END AS payload, r.priority, r.max_retries,
           r.created_at, r.ttl, r.timeout, r.run_at, CASE WHEN e.version = 1 THEN r.key END AS key,
           CASE WHEN e.version = 1 AND r.key IS NOT NULL THEN (
                SELECT expires_at FROM job_key AS j
                WHERE j.queue = r.queue AND j.key = r.key AND j.id = r.id
                  AND j.expires_at > coalesce($4::float8,
                                              extract(epoch FROM clock_timestamp())::float8)
           ) END AS key_expires_at,
           CASE WHEN e.version = 1 THEN r.labels::text END AS labels,
           CASE WHEN e.version = 1 THEN r.more::text END AS more,
           CASE WHEN e.to_state = 4 THEN d.result END AS result, d.cancel,
           sum(300 + coalesce(octet_length(e.detail), 0)
               + CASE WHEN e.version = 1 OR e.to_state = 6 THEN octet_length(r.payload) ELSE 0 END
               + coalesce(octet_length(d.result), 0)) OVER w AS size,
           row_number() OVER w AS nth
    FROM unnest($1::text::bigint[], $2::text::int[], $5::text::bigint[])
         WITH ORDINALITY AS k(seq, version, lo, n)
    CROSS JOIN LATERAL (
        SELECT * FROM job_events_of(k.seq, k.lo) AS o WHERE o.version = k.version OFFSET 0) AS e
    JOIN job_record AS r ON r.seq = k.seq
    LEFT JOIN LATERAL job_end_of(CASE WHEN e.to_state IN (4, 6) THEN k.seq END) AS d
         ON d.version = k.version
    WINDOW w AS (ORDER BY k.n)
) AS x WHERE nth = 1 OR size <= $3::bigint ORDER BY n

-- name: outbox
SELECT number, kind, at, body FROM outbox WHERE number = ANY ($1::bigint[])

-- name: put_queue
-- Adds a change of a queue or schedule to the outbox, if there is a stream. $1 kind, $2 now, $3 body
INSERT INTO outbox (xid, seq, version, kind, at, body)
SELECT pg_current_xact_id()::text::bigint, 0, 0, $1::smallint,
       coalesce($2::float8, extract(epoch FROM clock_timestamp())::float8), $3::text
WHERE EXISTS (SELECT FROM stream)

-- name: mark
SELECT position FROM stream

-- name: begin_stream
INSERT INTO stream (position, since, since_open, until, until_open, seq, version)
VALUES ('0', 0, '{}', 0, '{}', 0, 0)

-- name: numbers_of_others
-- True if rows have transaction numbers that this cluster has not assigned yet.
SELECT greatest((SELECT max(xid) FROM job_event), (SELECT max(xid) FROM outbox),
                (SELECT max(xid) FROM job_steps), (SELECT max(xid) FROM job_done),
                (SELECT until - 1 FROM stream))
       >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint

-- name: renumber_lock
LOCK TABLE stream IN SHARE ROW EXCLUSIVE MODE

-- name: renumber_events
-- For rows of {table}, whose last event is {last}. Events that were published, or all if there is no
-- stream, get the number 0; the others get $1. A number that this cluster has assigned, too, does not
-- show which cluster it is from: such events are published once more.
UPDATE {table} AS e
SET xid = CASE WHEN s.single IS NULL OR e.xid >= x.above AND ({in_stream_already}) THEN 0
          ELSE $1::bigint END
FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS above) AS x
LEFT JOIN stream AS s ON true
WHERE e.xid >= x.above OR s.single AND NOT (e.xid = 0 AND ({in_stream_already}))

-- name: renumber_outbox
UPDATE outbox SET xid = $1::bigint

-- name: flags_to_outbox
INSERT INTO outbox (xid, seq, version, kind, at, body)
SELECT pg_current_xact_id()::text::bigint, l.seq, l.version, 4,
       coalesce($1::float8, extract(epoch FROM clock_timestamp())::float8),
       json_build_object('job_id', l.id, 'queue', q.name, 'version', l.version)::text
FROM job_live AS l JOIN queues AS q ON q.id = l.queue WHERE l.state = 3 AND l.cancel

-- name: move_mark
UPDATE stream SET position = $1, since = $2, since_open = $3::bigint[], until = $4,
                  until_open = $5::bigint[], seq = $6, version = $7, refused = refused + $8,
                  moved_at = clock_timestamp()

-- name: empty_outbox
-- Deletes the entries that were published: those that had been committed at a snapshot.
DELETE FROM outbox WHERE xid < $1::bigint AND xid <> ALL ($2::bigint[])

-- name: behind
-- How many events and entries are not published, counted up to a limit, and the time of the oldest.
SELECT count(*), min(at), coalesce($8::float8, extract(epoch FROM clock_timestamp())::float8) FROM (
    SELECT at FROM (
        SELECT seq, version, 0::bigint AS number, at FROM {new_events} AS e
        UNION ALL SELECT seq, version, number, at FROM outbox WHERE {between}
        UNION ALL SELECT seq, version, number, at FROM outbox WHERE {later}) AS k
    WHERE (seq, version, number) > ($5::bigint, $6::int, $7::bigint)
    LIMIT 100000) AS b

-- name: in_stream_already
-- The condition for a row e, whose last event is {last}, to be published by the stream s: a fragment.
e.xid < s.since AND e.xid <> ALL (s.since_open) OR e.xid < s.until
    AND e.xid <> ALL (s.until_open) AND ({last}) <= (s.seq, s.version)

-- name: in_stream
-- Those of the jobs $1 whose events are all published; all jobs if there is no stream.
SELECT seq FROM unnest($1::bigint[]) AS j(seq) WHERE NOT EXISTS (
    SELECT FROM stream AS s CROSS JOIN LATERAL job_events_of(j.seq, j.seq >> 10 << 10) AS e
    WHERE NOT ({in_stream_already}))

-- name: remove
-- Deletes jobs that ended, with their events, in a transaction that has set jobqueue.retention. $2: their
-- keys are free again. $3 now. $4: those that ended in batches, whose ends are deleted already.
WITH x AS (
    DELETE FROM job_event WHERE seq = ANY ($1::bigint[])
), r AS (
    DELETE FROM job_record WHERE seq = ANY ($1::bigint[])
), e AS (
    DELETE FROM job_ended WHERE seq = ANY ($1::bigint[]) RETURNING seq, queue, state, version
), g AS (
    SELECT * FROM e UNION ALL
    SELECT seq, queue, 4, 4 FROM job_record WHERE seq = ANY ($4::bigint[])
), o AS (
    INSERT INTO outbox (xid, seq, version, kind, at, body)
    SELECT pg_current_xact_id()::text::bigint, e.seq, e.version, 5,
           coalesce($3::float8, extract(epoch FROM clock_timestamp())::float8),
           json_build_object('job_id', j.id, 'queue', q.name, 'version', e.version,
                             'key_freed', $2::boolean)::text
    FROM g AS e JOIN job_record AS j ON j.seq = e.seq JOIN queues AS q ON q.id = e.queue
    WHERE EXISTS (SELECT FROM stream)
)
INSERT INTO queue_tally (queue, done, dead_lettered)
SELECT queue, -count(*) FILTER (WHERE state = 4), -count(*) FILTER (WHERE state = 6)
FROM g GROUP BY queue

-- name: lock_batch
-- Locks the row with the end of a job. A statement of its own: "take_out" must see all changes before it.
SELECT FROM job_done
WHERE lo >> 10 = $1::bigint >> 10 AND lo <= $1 AND hi >= $1 AND ($1 & 1023)::smallint = ANY (offs)
FOR UPDATE

-- name: take_out
-- Deletes the end of one job from the row that it shares, or the row if this is its last job.
WITH p AS MATERIALIZED (
    SELECT ctid AS place, array_position(offs, ($1::bigint & 1023)::smallint) AS n FROM job_done
    WHERE lo >> 10 = $1 >> 10 AND lo <= $1 AND hi >= $1 AND ($1 & 1023)::smallint = ANY (offs)
), x AS (
    DELETE FROM job_done AS d USING p WHERE d.ctid = p.place AND cardinality(d.offs) = 1
)
UPDATE job_done AS d
SET offs = d.offs[:n - 1] || d.offs[n + 1:], leases = d.leases[:n - 1] || d.leases[n + 1:],
    began = d.began[:n - 1] || d.began[n + 1:], results = d.results[:n - 1] || d.results[n + 1:]
FROM p WHERE d.ctid = p.place AND cardinality(d.offs) > 1

-- name: with_windows
-- Rows s of job_steps that may have events of the jobs $1, one row w for each window: a fragment.
(SELECT min(seq) AS first, max(seq) AS last FROM unnest($1::bigint[]) AS t(seq)
       GROUP BY seq >> 10) AS w
WHERE s.lo BETWEEN w.first >> 10 << 10 AND w.last AND s.hi >= w.first

-- name: lock_steps
-- Makes deletions of jobs that share rows of job_steps wait for each other. This is a statement of its
-- own, so that "forget_steps" begins after the wait and sees the rows that the other deletion left.
SELECT FROM job_steps AS s, {with_windows}
ORDER BY s.lo, s.ctid FOR UPDATE OF s

-- name: forget_steps
-- Deletes the rows of job_steps of which no job is left, where the jobs $1 were deleted.
DELETE FROM job_steps AS s USING {with_windows}
  AND NOT EXISTS (SELECT FROM job_record AS r WHERE r.seq BETWEEN s.lo AND s.hi)

-- name: old_done
-- The oldest DONE jobs that completed before $1 and not before $4: times of the caller's clock, which
-- shows $3 now (NULL: it is the database's). Unpublished jobs are kept. They count towards the limit, so
-- later jobs may have to wait for their publication. $5 names of queues; $6: all other queues instead.
SELECT seq FROM (
    SELECT seq FROM job_ended WHERE state = 4 AND completed_at < (
        SELECT $1::float8 + coalesce(extract(epoch FROM clock_timestamp())::float8 - $3::float8, 0))
      AND completed_at >= (
        SELECT $4::float8 + coalesce(extract(epoch FROM clock_timestamp())::float8 - $3::float8, 0))
      AND (queue = ANY (ARRAY(SELECT id FROM queues WHERE name = ANY ($5::text[])))) <> $6::boolean
    ORDER BY completed_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS d
WHERE NOT EXISTS (
    SELECT FROM stream AS s JOIN job_event AS e ON e.seq = d.seq
    WHERE NOT ({in_stream_already}))

-- name: old_batches
-- As "old_done", of ends in batches. Whole rows are deleted, until there are $2 jobs or a few more.
WITH d AS (
    DELETE FROM job_done WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM (
            SELECT e.ctid, e.xid, e.hi, sum(e.jobs) OVER (ORDER BY e.at, e.ctid) - e.jobs AS before
            FROM (
                SELECT ctid, xid, hi, at, cardinality(offs) AS jobs FROM job_done
                WHERE at < (SELECT $1::float8 + coalesce(
                    extract(epoch FROM clock_timestamp())::float8 - $3::float8, 0))
                  AND at >= (SELECT $4::float8 + coalesce(
                    extract(epoch FROM clock_timestamp())::float8 - $3::float8, 0))
                  AND (queue = ANY (ARRAY(SELECT id FROM queues WHERE name = ANY ($5::text[]))))
                      <> $6::boolean
                ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED) AS e) AS e
        WHERE before < $2 AND NOT EXISTS (
            SELECT FROM stream AS s WHERE NOT ({in_stream_already}))))
    RETURNING lo, offs
)
SELECT (lo >> 10 << 10) + o FROM d CROSS JOIN unnest(offs) AS o

-- name: create_queue
-- The row of a deleted queue is used again, with new settings and its old jobs. The settings begin at $4.
INSERT INTO queues AS q (name, paused, created_at, {settings})
VALUES ($1, $2, coalesce(to_timestamp($3::float8), clock_timestamp()), {settings_from_4})
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, created_at = excluded.created_at,
    deleted = false, ({settings}) = ({new_settings})
WHERE q.deleted
RETURNING extract(epoch FROM created_at)::float8

-- name: update_queue
UPDATE queues SET ({settings}) = ({settings_from_2}) WHERE name = $1

-- name: pause_queue
UPDATE queues SET paused = $2 WHERE name = $1 AND NOT deleted AND paused <> $2 RETURNING id

-- name: lock_queue
-- Waits for all transactions that submit jobs to the queue. A user's transaction may stay open, so the
-- wait has a limit.
SELECT q.id FROM (SELECT set_config('lock_timeout', '2000', true)) AS w CROSS JOIN queues AS q
WHERE q.name = $1 AND NOT q.deleted FOR UPDATE OF q

-- name: lock_settings
-- Waits for other changes of the queue, and for no submit.
SELECT id FROM queues WHERE name = $1 AND NOT deleted FOR NO KEY UPDATE

-- name: count_unfinished
SELECT (SELECT count(*) FROM job_live WHERE queue = $1)
       + (SELECT coalesce(sum(hi - nxt + 1), 0)::bigint FROM job_ready WHERE queue = $1)
       + (SELECT coalesce(sum({open_bits}), 0)::bigint FROM job_held AS k WHERE queue = $1)

-- name: unfinished
SELECT seq FROM (SELECT seq, queue FROM job_live UNION ALL SELECT seq, queue FROM ready_job
                 UNION ALL SELECT seq, queue FROM held_job) AS u
WHERE queue = (SELECT id FROM queues WHERE name = $1) LIMIT $2

-- name: stats
SELECT q.name, q.paused, extract(epoch FROM q.created_at)::float8, {settings},
       coalesce(sum(t.pending), 0)::bigint, coalesce(sum(t.assigned), 0)::bigint,
       coalesce(sum(t.running), 0)::bigint, coalesce(sum(t.done), 0)::bigint,
       coalesce(sum(t.failed), 0)::bigint, coalesce(sum(t.dead_lettered), 0)::bigint,
       coalesce(sum(t.succeeded), 0)::bigint, coalesce(sum(t.unsuccessful), 0)::bigint,
       coalesce(sum(t.run_seconds), 0)::float8,
       coalesce(sum(t.succeeded + t.unsuccessful), 0)::bigint
FROM queues AS q LEFT JOIN queue_tally AS t ON t.queue = q.id
WHERE NOT q.deleted AND ($1::text IS NULL OR q.name = $1)
GROUP BY q.id ORDER BY q.name

-- name: restore_lock
-- Other writers wait until the restore has ended.
LOCK TABLE leader, queues, job_record, job_live, job_ended, job_ready, job_held, job_event, job_steps,
           job_done, job_key, schedules, stream, outbox IN EXCLUSIVE MODE

-- name: led
SELECT EXISTS (SELECT FROM leader
               WHERE expires_at > coalesce(to_timestamp($1::float8), clock_timestamp()))

-- name: restore_queue
INSERT INTO queues (name, paused, created_at, deleted, {settings})
VALUES ($1, $2, to_timestamp($3::float8), $4, {settings_from_5}) RETURNING id

-- name: restore_records
-- As "submit_long", with given numbers ($15) and times ($1). The jobs have the settings of their queues.
INSERT INTO job_record (seq, {record_columns}, key) OVERRIDING SYSTEM VALUE
SELECT t.seq, {record_values}, t.key
FROM unnest($1::float8[], $2::int[], $3::text::uuid[], $4::text[], $5::bytea[], $6::text[],
            $7::smallint[], $8::int[], $9::float8[], $10::float8[], $11::float8[], $12::float8[],
            $13::text[], $15::bigint[], $16::text[])
     AS t(now, queue, id, type, payload, labels, priority, max_retries, ttl, timeout, run_at, delay,
          key, seq, more)
CROSS JOIN LATERAL (SELECT t.now) AS c
CROSS JOIN LATERAL (SELECT t.queue, 0, NULL::float8, NULL::float8)
     AS q(id, max_retries, ttl, timeout)

-- name: restore_unique
INSERT INTO job_unique AS u (queue, key, id, seq, looked_at)
SELECT queue, key, id, seq, $5::float8
FROM unnest($1::int[], $2::text[], $3::text[]::uuid[], $4::bigint[]) AS t(queue, key, id, seq)
ON CONFLICT (queue, key) DO UPDATE SET id = excluded.id, seq = excluded.seq WHERE u.seq < excluded.seq

-- name: restore_live
INSERT INTO job_live (seq, id, queue, kind, prio, max_retries, timeout, state, ready, version, attempt,
                      retry_count, lease, last_lease, worker, last_worker, cancel, deaths, run_at,
                      expires_at, started_at, due, wake_at, error, reason, updated_at, ckey)
SELECT r.seq, r.id, r.queue, kind_of(r.type, r.more), 9 - r.priority, r.max_retries, r.timeout, t.state,
    t.ready, t.version, t.attempt, t.retry_count, t.lease, t.last_lease, t.worker, t.last_worker,
    t.cancel, t.deaths, t.run_at, t.expires_at, t.started_at, t.due, t.wake_at, t.error, t.reason,
    t.updated_at, ckey_of(r.more)
FROM {live_rows} JOIN job_record AS r ON r.seq = ANY (ARRAY[t.seq])

-- name: restore_sequence
-- New numbers come after $2.
SELECT setval(s, greatest($2::bigint, nextval(s)))
FROM (SELECT pg_get_serial_sequence($1::text, $3::text)::regclass AS s) AS x

-- name: restore_mark
-- Everything up to this transaction counts as published, except what other open transactions write.
INSERT INTO stream (position, since, since_open, until, until_open, seq, version)
VALUES ($1, $2, $3::bigint[], $2, $3::bigint[], 0, 0)

-- name: name_workers
WITH n AS (
    INSERT INTO worker_name (name) SELECT DISTINCT unnest($1::text[]) ORDER BY 1
    ON CONFLICT (name) DO NOTHING RETURNING id, name
)
SELECT id, name FROM n UNION SELECT id, name FROM worker_name WHERE name = ANY ($1::text[])

-- name: worker_names
SELECT id, name FROM worker_name WHERE id = ANY ($1::int[])

-- name: register_worker
-- A reconnect of the same incarnation does not undo an operator's drain. Returns no row if another owner
-- has registered a worker of this id first (core.job.owner_allows).
INSERT INTO workers AS w (id, incarnation, hostname, pid, concurrency, queues, version, link,
                          types, owner, status, registered_at, last_seen)
SELECT $1, $2, $3, $4, $5, $6, $7, $9, $10::text[], $11, 'ONLINE', c.now, c.now
FROM (SELECT coalesce(to_timestamp($8::float8), clock_timestamp()) AS now) AS c
ON CONFLICT (id) DO UPDATE SET incarnation = excluded.incarnation, hostname = excluded.hostname,
    pid = excluded.pid, concurrency = excluded.concurrency, queues = excluded.queues,
    version = excluded.version, link = excluded.link, types = excluded.types,
    owner = excluded.owner, registered_at = excluded.registered_at, last_seen = excluded.last_seen,
    overrun = 0, breakers = NULL,
    status = CASE WHEN w.incarnation = excluded.incarnation AND w.status <> 'OFFLINE'
                  THEN w.status ELSE 'ONLINE' END
WHERE excluded.owner IN ('', E'\tin process') OR w.owner IN ('', excluded.owner)
   OR w.status = 'OFFLINE'
RETURNING id

-- name: registering
-- Lets an owner ($1) register one worker at a time, so that the workers can be counted.
SELECT pg_advisory_xact_lock(hashtextextended($1, 1784769123))

-- name: count_owned
SELECT count(*) FROM workers WHERE owner = $1 AND id <> $2

-- name: forget_offline
-- Deletes the OFFLINE workers of the owner $1 that hold no job, except $2.
DELETE FROM workers AS w WHERE w.owner = $1 AND w.id <> $2 AND w.status = 'OFFLINE' AND NOT EXISTS (
    SELECT FROM worker_name AS n WHERE n.name = w.id AND (
        EXISTS (SELECT FROM job_live AS l WHERE l.worker = n.id)
        OR EXISTS (SELECT FROM job_held AS k WHERE k.worker = n.id)))
RETURNING w.id

-- name: beat
-- Only for the worker's owner ($4), unless the worker has no owner, the caller has the store open, or
-- callers are not known (core.job.owner_allows).
UPDATE workers SET last_seen = coalesce(to_timestamp($3::float8), clock_timestamp()),
    overrun = coalesce($5, overrun)
WHERE id = $1 AND incarnation = $2 AND status <> 'OFFLINE' AND ($4 IN ('', E'\tin process') OR owner IN ('', $4))
RETURNING status

-- name: set_breakers
UPDATE workers SET breakers = $3 WHERE id = $1 AND incarnation = $2

-- name: owner
SELECT owner FROM workers WHERE id = $1

-- name: held
SELECT l.seq, l.lease, w.name, l.state, l.cancel
FROM (SELECT seq, lease, state, cancel, worker FROM job_live WHERE worker IS NOT NULL
      UNION ALL SELECT seq, lease, 2, false, worker FROM held_job) AS l
JOIN worker_name AS w ON w.id = l.worker

-- name: held_by
-- The jobs that one worker holds, from $2 on.
SELECT l.seq, l.lease, $1::text, l.state, l.cancel FROM job_live AS l
WHERE l.worker = (SELECT id FROM worker_name WHERE name = $1) AND l.seq >= $2
UNION ALL
SELECT l.seq, l.lease, $1::text, 2, false FROM held_job AS l
WHERE l.worker = (SELECT id FROM worker_name WHERE name = $1) AND l.seq >= $2

-- name: postpone
UPDATE job_live AS l
SET due = coalesce($3::float8, extract(epoch FROM clock_timestamp())::float8) + $4::float8
FROM unnest($1::bigint[], $2::bigint[]) AS t(seq, lease)
WHERE l.seq = ANY (ARRAY[t.seq]) AND l.lease = t.lease AND l.state + 0 = 2

-- name: keep_progress
-- Only for leases that the worker holds. $1 lease, $2 seq, $3 value, $4 text; $5 now
INSERT INTO job_progress AS p (lease, seq, value, text, at)
SELECT t.lease, t.seq, t.value, t.text,
       coalesce($5::float8, extract(epoch FROM clock_timestamp())::float8)
FROM unnest($1::bigint[], $2::bigint[], $3::float8[], $4::text[]) AS t(lease, seq, value, text)
ON CONFLICT (lease) DO UPDATE SET value = EXCLUDED.value, text = EXCLUDED.text, at = EXCLUDED.at

-- name: forget_progress
-- Deletes the progress of attempts that have ended.
DELETE FROM job_progress AS p WHERE NOT EXISTS (
    SELECT 1 FROM job_live AS l WHERE l.seq = ANY (ARRAY[p.seq]) AND l.lease = p.lease)
  AND NOT EXISTS (SELECT 1 FROM job_held AS k WHERE k.base = ANY (ARRAY[p.lease - p.seq]))

-- name: set_worker_status
-- A worker that is stopping cannot become ONLINE or DRAINING again.
UPDATE workers SET status = $2
WHERE id = $1 AND ($2 IN ('STOPPING', 'OFFLINE') OR status IN ('ONLINE', 'DRAINING'))
RETURNING id

-- name: open_bits
-- How many jobs a row k of job_held has. PostgreSQL 13 has no bit_count.
length(replace(k.open::text, '0', ''))

-- name: workers
-- $1: false leaves out the names of queues and types
SELECT w.id, w.incarnation, w.hostname, w.pid, w.concurrency,
       CASE WHEN $1::boolean THEN w.queues ELSE '{}' END, w.version, w.link,
       CASE WHEN $1::boolean THEN w.types END, w.owner, w.status, extract(epoch FROM w.registered_at)::float8, extract(epoch FROM w.last_seen)::float8,
       coalesce(h.count, 0), w.overrun, w.breakers
FROM workers AS w LEFT JOIN worker_name AS n ON n.name = w.id
LEFT JOIN (SELECT worker, sum(count)::bigint AS count FROM (
               SELECT worker, count(*) FROM job_live WHERE worker IS NOT NULL GROUP BY worker
               UNION ALL SELECT worker, {open_bits} FROM job_held AS k) AS x GROUP BY worker) AS h
     ON h.worker = n.id
ORDER BY w.id

-- name: workers_from
-- As "workers", but counts live rows that a worker ($1) holds only from $2 on. $3 is as its $1.
SELECT w.id, w.incarnation, w.hostname, w.pid, w.concurrency,
       CASE WHEN $3::boolean THEN w.queues ELSE '{}' END, w.version, w.link,
       CASE WHEN $3::boolean THEN w.types END, w.owner, w.status, extract(epoch FROM w.registered_at)::float8, extract(epoch FROM w.last_seen)::float8,
       coalesce(h.count, 0), w.overrun, w.breakers
FROM workers AS w LEFT JOIN worker_name AS n ON n.name = w.id
LEFT JOIN (
    SELECT f.worker, (SELECT count(*) FROM job_live AS l
                      WHERE l.worker = f.worker AND l.seq >= f.floor)
           + (SELECT coalesce(sum({open_bits}), 0)::bigint FROM job_held AS k
              WHERE k.worker = f.worker) AS count
    FROM unnest($1::int[], $2::bigint[]) AS f(worker, floor)) AS h ON h.worker = n.id
ORDER BY w.id

-- name: worker_infos
SELECT id, incarnation, hostname, pid, concurrency, queues, version, link, types, owner
FROM workers WHERE id = ANY ($1::text[])

-- name: retire_silent
UPDATE workers SET status = 'OFFLINE' WHERE status <> 'OFFLINE'
AND last_seen < coalesce(to_timestamp($1::float8), clock_timestamp()) - make_interval(secs => $2)
RETURNING id

-- name: retire_worker
-- Only for the worker's owner ($3), as "beat".
DELETE FROM workers AS w WHERE w.id = $1 AND w.incarnation = $2
AND ($3 IN ('', E'\tin process') OR w.owner IN ('', $3)) AND NOT EXISTS (
    SELECT FROM worker_name AS n WHERE n.name = $1 AND (
        EXISTS (SELECT FROM job_live AS l WHERE l.worker = n.id)
        OR EXISTS (SELECT FROM job_held AS k WHERE k.worker = n.id)))
RETURNING w.id

-- name: forget_worker
DELETE FROM workers WHERE id = $1 AND status = 'OFFLINE' RETURNING id

-- name: lead
-- Takes the leadership if it is free or has expired, or renews the holder's own. $1 holder, $2 ttl,
-- $3 now, $4 name
INSERT INTO leader AS l (holder, epoch, expires_at, name, since, named)
SELECT $1, 1, c.now + make_interval(secs => $2), $4, extract(epoch FROM c.now)::float8, 1
FROM (SELECT coalesce(to_timestamp($3::float8), clock_timestamp()) AS now) AS c
ON CONFLICT (single) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at,
    epoch = l.epoch + CASE WHEN l.holder = excluded.holder AND l.expires_at > '-infinity'
                           THEN 0 ELSE 1 END,
    named = l.epoch + CASE WHEN l.holder = excluded.holder AND l.expires_at > '-infinity'
                           THEN 0 ELSE 1 END,
    name = excluded.name,
    since = CASE WHEN l.holder = excluded.holder AND l.expires_at > '-infinity'
                      AND l.named = l.epoch
                 THEN l.since ELSE excluded.since END
WHERE l.holder = excluded.holder OR l.expires_at <= excluded.expires_at - make_interval(secs => $2)
RETURNING epoch

-- name: leader
SELECT CASE WHEN named = epoch THEN name ELSE '' END, epoch,
       CASE WHEN named = epoch THEN since ELSE 0 END
FROM leader WHERE expires_at > coalesce(to_timestamp($1::float8), clock_timestamp())

-- name: resign
-- The row stays, so that the next epoch is higher.
UPDATE leader SET expires_at = '-infinity' WHERE holder = $1 AND epoch = $2

-- name: check_term
-- Locked, so that no server can take over before this transaction ends.
SELECT 1 FROM leader WHERE holder = $1 AND epoch = $2
AND expires_at > coalesce(to_timestamp($3::float8), clock_timestamp()) FOR SHARE

-- name: durability
SELECT current_setting('fsync') = 'on', current_setting('synchronous_commit'),
       current_setting('full_page_writes') = 'on'

-- name: instance
SELECT id, generation, continues FROM instance

-- name: layout
SELECT layout FROM instance

-- name: restore_instance
UPDATE instance SET id = $1, generation = $2, continues = $3

-- name: write_limits
-- The limits that functions of the schema jq apply: those of the server that started last.
UPDATE instance SET key_ttl = $1, max_payload_bytes = $2
WHERE (key_ttl, max_payload_bytes) IS DISTINCT FROM ($1::float8, $2::bigint)

-- name: touch
-- Changes nothing, but its commit must reach the disk before it is answered.
UPDATE instance SET id = id

-- name: dispel
-- Terminates a backend whose connection was lost, because it may still run a statement.
SELECT state = 'active' AND wait_event_type IS DISTINCT FROM 'Client' AS at_work,
       pg_terminate_backend(pid)
  FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2

-- name: still_there
SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2

-- name: due_schedules
SELECT name FROM schedules WHERE due_at <= $1::float8 ORDER BY due_at, name

-- name: next_schedule
SELECT min(due_at) FROM schedules WHERE due_at > $1::float8

-- name: schedule_columns
name, revision, definition, state

-- name: get_schedules
SELECT {schedule_columns}, payload FROM schedules WHERE name = ANY ($1::text[]) ORDER BY name

-- name: every_schedule
SELECT {schedule_columns}, payload FROM schedules

-- name: list_schedules
-- Payloads are not read: they may be large.
SELECT {schedule_columns}, ''::bytea FROM schedules
WHERE name > $1::text COLLATE "C" ORDER BY name LIMIT $2

-- name: create_schedule
-- Returns a row if the schedule was written. With $7, an earlier try may have written it already.
INSERT INTO schedules AS s (name, revision, due_at, payload, definition, state)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO UPDATE SET revision = excluded.revision
WHERE $7::boolean AND s.revision = excluded.revision AND s.definition = excluded.definition
RETURNING true

-- name: change_schedule
-- As "create_schedule".
UPDATE schedules
SET revision = $2, due_at = $3, payload = $4, definition = $5, state = $6
WHERE name = $1
  AND (revision = $2 - 1 OR $7::boolean AND revision = $2 AND definition = $5 AND state = $6)
RETURNING true

-- name: advance_schedules
-- $1 names, $2 revisions, $3 due_at, $4 states and $5 bodies for the outbox, one for each schedule. $6 the
-- kind of these outbox entries, $7 now, $8 true if an earlier try may have written the schedules.
WITH t AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::float8[], $4::text[], $5::text[])
        AS t(name, revision, due_at, state, body)
), u AS (
    UPDATE schedules AS s SET revision = t.revision, due_at = t.due_at, state = t.state FROM t
    WHERE s.name = t.name
      AND (s.revision = t.revision - 1
           OR $8::boolean AND s.revision = t.revision AND s.state = t.state)
    RETURNING s.name, t.body
), o AS (
    INSERT INTO outbox (xid, seq, version, kind, at, body)
    SELECT pg_current_xact_id()::text::bigint, 0, 0, $6::smallint,
           coalesce($7::float8, extract(epoch FROM clock_timestamp())::float8), u.body
    FROM u WHERE EXISTS (SELECT FROM stream)
)
SELECT name FROM u

-- name: remove_schedule
DELETE FROM schedules WHERE name = $1 RETURNING {schedule_columns}, payload
