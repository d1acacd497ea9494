-- The runs whose stored data is deleted once they have left the server: `collection`.
CREATE TABLE loom_stored_runs (
    server text NOT NULL,                           -- the id of the namespace on a server
    run_id text NOT NULL,
    tree text NOT NULL,                             -- the id of the tree's root
    parent text NOT NULL,                           -- a workflow outside the tree that started the run; '': none
    seen boolean NOT NULL,                          -- false: the server didn't have the run when it was looked up
    checked_at timestamptz,                         -- when the tree was last looked for on the server; NULL: never
    PRIMARY KEY (server, run_id)
);
CREATE INDEX loom_stored_runs_tree ON loom_stored_runs (server, tree);

CREATE INDEX loom_effects_run ON loom_effects (run_id);
