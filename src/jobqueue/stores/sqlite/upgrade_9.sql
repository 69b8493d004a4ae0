-- Schema 9: who registered a worker; empty: nobody had to say who they are.

ALTER TABLE worker ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE INDEX worker_owner ON worker (owner) WHERE owner <> '';
