-- Schedules (core/schedule.py). A tick changes the revision, the state and due_at alone. Names sort
-- by their bytes, as in the other stores.
CREATE TABLE schedules (
    name       text COLLATE "C" PRIMARY KEY,
    revision   bigint NOT NULL,  -- a write names the revision that it replaces
    due_at     float8,           -- when the leader must look at it; NULL while it is paused
    payload    bytea NOT NULL,
    definition text NOT NULL,    -- JSON: everything but name, payload, revision and state
    state      text NOT NULL     -- JSON
);
CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;
