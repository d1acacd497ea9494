-- Which effects have begun and ended. A row is a promise: history may name it for as long as its run is open.
CREATE TABLE loom_effects (
    id bytea PRIMARY KEY,                           -- SHA-256 of the key, which may be of any length
    key text NOT NULL,                              -- for people; see `storable`
    run_id text NOT NULL,
    attempt int NOT NULL,                           -- holds the claim
    earlier int,                                    -- held it before and did not end; NULL: nobody
    claim uuid NOT NULL,                            -- one per reserving, so that one whose answer was lost can be repeated
    result json,                                    -- NULL: not ended; json, not jsonb, which refuses \u0000
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz
);
CREATE INDEX loom_effects_created_at ON loom_effects USING brin (created_at);

-- Outputs too long for a model, whole.
CREATE TABLE loom_artifacts (
    run_id text NOT NULL,
    artifact text NOT NULL,
    compressed boolean NOT NULL,                    -- data is UTF-8, or that through zlib
    data bytea NOT NULL,
    size int NOT NULL,                              -- bytes of the UTF-8
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, artifact)
);
ALTER TABLE loom_artifacts ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX loom_artifacts_created_at ON loom_artifacts USING brin (created_at);
