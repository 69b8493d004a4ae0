-- Schema 5: who leads, for people. A process that does not know these columns leaves them as they
-- are: "named" is the epoch that they tell of.

ALTER TABLE leader ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE leader ADD COLUMN since REAL NOT NULL DEFAULT 0;
ALTER TABLE leader ADD COLUMN named INTEGER NOT NULL DEFAULT 0;
