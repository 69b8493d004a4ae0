-- Schema 6: workers say which types they know, and claims give them only those. The index has each
-- type's jobs side by side, so that those of other types are never looked at.

ALTER TABLE live ADD COLUMN type TEXT;
UPDATE live SET type = (SELECT type FROM rec WHERE rec.seq = live.seq);
DROP INDEX live_ready;
CREATE INDEX live_ready ON live (queue, type, prio, seq) WHERE ready = 1;

-- A process that has the file open since before does not know the column.
CREATE TRIGGER live_type AFTER INSERT ON live WHEN new.type IS NULL BEGIN
    UPDATE live SET type = (SELECT type FROM rec WHERE rec.seq = new.seq) WHERE seq = new.seq;
END;

-- The types that a worker knows, as a JSON array; NULL: every type.
ALTER TABLE worker ADD COLUMN types TEXT;
