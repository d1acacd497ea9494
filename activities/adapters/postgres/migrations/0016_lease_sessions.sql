-- The database session that has last renewed the lease. It ends with its worker's process, but not if the worker stands still.
ALTER TABLE loom_effects ADD COLUMN session int;
