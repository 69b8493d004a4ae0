-- Schema 11: which store this is, for readers of its event stream (core/identity.py). Records of
-- earlier versions do not say who wrote them: those of a stream that is there are this store's.

CREATE TABLE instance (
    id         TEXT NOT NULL,
    generation TEXT NOT NULL,
    continues  TEXT NOT NULL
);
INSERT INTO instance
SELECT lower(hex(randomblob(6))), '1', CASE WHEN EXISTS (SELECT 1 FROM stream) THEN 'unnamed' ELSE '' END;
