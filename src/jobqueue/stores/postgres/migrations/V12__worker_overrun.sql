-- Slots of a worker whose attempt is over and whose function still runs, by its last heartbeat.
ALTER TABLE workers ADD COLUMN overrun bigint NOT NULL DEFAULT 0;
