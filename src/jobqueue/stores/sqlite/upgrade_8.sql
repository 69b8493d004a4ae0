-- Schema 8: how long the failed jobs of a queue wait, where that is not as its profile says.

ALTER TABLE queue ADD COLUMN retry_base REAL;
ALTER TABLE queue ADD COLUMN retry_max REAL;
ALTER TABLE queue ADD COLUMN retry_jitter REAL;
