-- Schema 2: several servers on one file.

-- Who leads: one row. An epoch never comes back, and a resigned lead has no holder.
CREATE TABLE leader (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    holder INTEGER,
    epoch  INTEGER NOT NULL,
    until  REAL    NOT NULL
);
INSERT INTO leader (id, epoch, until) VALUES (1, 0, 0);

-- Counts what other processes should look at beside the jobs: cancel flags, workers, the lead.
CREATE TABLE control (id INTEGER PRIMARY KEY CHECK (id = 1), changes INTEGER NOT NULL);
INSERT INTO control VALUES (1, 0);

-- Which registration of a worker is the latest.
ALTER TABLE worker ADD COLUMN link INTEGER NOT NULL DEFAULT 0;
