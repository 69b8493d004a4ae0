-- Who leads, for people. A server that does not know these columns leaves them as they are:
-- "named" is the epoch that they tell of.
ALTER TABLE leader ADD COLUMN name text NOT NULL DEFAULT '',
                   ADD COLUMN since float8 NOT NULL DEFAULT 0,
                   ADD COLUMN named bigint NOT NULL DEFAULT 0;
