-- Which store this is, for readers of its event stream (core/identity.py): beside the id, which
-- life of it, and whose records it goes on from. Records of earlier versions do not say who wrote
-- them: those of a stream that is there are this store's.
ALTER TABLE instance ADD COLUMN generation text NOT NULL DEFAULT '1';
ALTER TABLE instance ADD COLUMN continues text NOT NULL DEFAULT '';
UPDATE instance SET continues = 'unnamed' WHERE EXISTS (SELECT FROM stream);
