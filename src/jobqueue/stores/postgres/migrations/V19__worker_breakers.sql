-- Types that a worker has paused, because their jobs failed in a row (core/breaker.py), in JSON.
ALTER TABLE workers ADD COLUMN breakers text;
