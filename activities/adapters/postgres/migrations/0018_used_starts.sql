-- The execution that each signed start has begun. A row stays until its run has left the server, because until then, somebody can
-- reset the run to its start.
CREATE TABLE loom_used_starts (
    start text PRIMARY KEY,
    run_id text NOT NULL,
    execution text NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX loom_used_starts_by_run ON loom_used_starts (run_id);
