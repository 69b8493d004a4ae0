-- Who registered a worker: others may not use its id until it is OFFLINE. Empty: nobody had to say
-- who they are, or an older version registered it.
ALTER TABLE workers ADD COLUMN owner text NOT NULL DEFAULT '';
