-- Claims by type. A live row carries a number that stands for its type, and the index of what is
-- ready has it before the sequence number: a claim reads the jobs of the types that it means, and
-- none of the others, however many there are.
--
-- The number is the beginning of the type's SHA-256 (heads.py computes the same): every server knows
-- it without asking, nothing is written for a new type, and nothing is left of a type that is gone.
-- Never changed: rows keep these numbers.
CREATE FUNCTION kind_of(type text) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' || encode(substring(sha256(convert_to(type, 'UTF8')) FOR 8), 'hex'))::bit(64)::bigint
$$;

DROP INDEX job_live_ready;
ALTER TABLE job_live ADD COLUMN kind bigint;
UPDATE job_live AS l SET kind = kind_of(r.type) FROM job_record AS r WHERE r.seq = l.seq;
ALTER TABLE job_live ALTER COLUMN kind SET NOT NULL;
CREATE INDEX job_live_ready ON job_live (queue, prio, ready, kind, seq) WHERE ready > 0;

-- For servers of older versions, which do not say it.
CREATE FUNCTION job_live_has_kind() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.kind := (SELECT kind_of(r.type) FROM job_record AS r WHERE r.seq = NEW.seq);
    RETURN NEW;
END $$;
CREATE TRIGGER job_live_has_kind BEFORE INSERT ON job_live FOR EACH ROW WHEN (NEW.kind IS NULL)
    EXECUTE FUNCTION job_live_has_kind();

-- The types that a worker knows; NULL: every type.
ALTER TABLE workers ADD COLUMN types text[];

-- For people: the claimable jobs by type.
CREATE VIEW waiting_types AS
SELECT q.name AS queue, r.type, count(*) AS jobs, to_timestamp(min(r.created_at)) AS oldest
FROM job_live l JOIN job_record r ON r.seq = l.seq JOIN queues q ON q.id = l.queue
WHERE l.ready > 0 GROUP BY q.name, r.type;
