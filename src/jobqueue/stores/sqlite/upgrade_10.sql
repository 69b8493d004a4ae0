-- Schema 10: how long jobs of a queue are kept, where that is not as the server says.

ALTER TABLE queue ADD COLUMN retention REAL;
ALTER TABLE queue ADD COLUMN dead_letter_retention REAL;
