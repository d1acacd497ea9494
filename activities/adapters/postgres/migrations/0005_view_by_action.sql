-- Which memories a view has, also where only an action or a layer is named: there are few actions, so that a search which
-- names none skips from one to the next.
DROP INDEX loom_memory_view;
CREATE INDEX loom_memory_view ON loom_memory (action, place, layer, node) WHERE superseded_by IS NULL;
