-- Slots of a worker whose attempt is over and whose function still runs, by its last heartbeat.
ALTER TABLE worker ADD COLUMN overrun INTEGER NOT NULL DEFAULT 0;
