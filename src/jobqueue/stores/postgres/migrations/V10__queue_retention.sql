-- How long jobs of a queue are kept, where that is not as the server says.
ALTER TABLE queues ADD COLUMN retention float8,
                   ADD COLUMN dead_letter_retention float8;
