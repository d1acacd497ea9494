-- What the runs of a tree have changed in their clone of a repository. The clone is the commit in the run's history, and this patch.
CREATE TABLE loom_clones (
    run_id text NOT NULL,                           -- the root of the tree
    execution text NOT NULL,                        -- tells runs apart that use the same id
    version int NOT NULL DEFAULT 0,                 -- rises with each stored change, and when a change that isn't stored is lost
    patch bytea NOT NULL DEFAULT '',                -- through zlib; empty: there is no change
    call text NOT NULL DEFAULT '',                  -- the call after which it was stored
    changing text[] NOT NULL DEFAULT '{}',          -- the calls that may have changed files since then
    lost text[] NOT NULL DEFAULT '{}',              -- the calls whose changes may be lost, in this order
    told jsonb NOT NULL DEFAULT '{}',               -- how many of them the agent of each run has been told
    generation text NOT NULL DEFAULT '',            -- the clone in which a call last could change files
    holder uuid,                                    -- the call that may change files now; NULL: none
    held_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),  -- of the last change
    PRIMARY KEY (run_id, execution)
);
ALTER TABLE loom_clones ALTER COLUMN patch SET STORAGE EXTERNAL;
