-- Sketches of one length, which an index of nearest neighbours asks for: the first 384 components, to length 1; shorter
-- vectors end in zeros, which changes no product.
DROP INDEX loom_memory_near;
ALTER TABLE loom_memory ALTER COLUMN sketch TYPE halfvec(384)
    USING l2_normalize((sketch::real[] || array_fill(0::real, ARRAY[384]))[1:384]::halfvec(384));
ALTER TABLE loom_memory ALTER COLUMN sketch SET STORAGE PLAIN; -- an index of it refuses what is compressed or elsewhere

-- A search by meaning in a view reads this index and nothing else: right under any filter, and all of the view is read.
CREATE INDEX loom_memory_near ON loom_memory (place, model, dimension, layer, action, node)
    INCLUDE (id, run_id, importance, created_at, scope, sketch) WHERE superseded_by IS NULL AND model IS NOT NULL;
-- For views that are a great part of all: the nearest of all are found without reading the rest, then filtered.
CREATE INDEX loom_memory_nearest ON loom_memory USING hnsw (sketch halfvec_ip_ops)
    WHERE superseded_by IS NULL AND model IS NOT NULL;
-- The most important of a session, to list them and to search among them.
CREATE INDEX loom_memory_important ON loom_memory (place, importance DESC, created_at DESC, id DESC)
    WHERE superseded_by IS NULL;
-- Which memories a view has, to meet with those that have a word before any is read.
CREATE INDEX loom_memory_view ON loom_memory (place, action, node) WHERE superseded_by IS NULL;
