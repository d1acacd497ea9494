-- The audit log: a chain of hashes over who did what, when, and to which run. It contains digests, but no content.
CREATE TABLE loom_audit (
    sequence bigint PRIMARY KEY,                    -- 1, 2, 3 …, without gaps
    recorded_at timestamptz NOT NULL,
    key text NOT NULL UNIQUE,                       -- identifies the act, so that it is recorded once
    at timestamptz NOT NULL,                        -- when it was done
    act text NOT NULL,
    source text NOT NULL,                           -- how it has become known
    by text NOT NULL,                               -- this and the following texts are empty if they are unknown
    identity text NOT NULL,
    tenant text NOT NULL,
    run_id text NOT NULL,
    subject text NOT NULL,
    digest text NOT NULL,                           -- SHA-256 of the content, in hexadecimal
    key_id text NOT NULL,                           -- the encryption key that the hash depends on; '': none
    previous bytea NOT NULL,                        -- the hash of the row before
    hash bytea NOT NULL
);
CREATE INDEX loom_audit_run ON loom_audit (run_id, sequence);
CREATE INDEX loom_audit_tenant ON loom_audit (tenant, sequence);
CREATE INDEX loom_audit_at ON loom_audit (at);

CREATE FUNCTION loom_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'loom_audit only grows: its rows are neither changed nor deleted';
END
$$;
CREATE TRIGGER loom_audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON loom_audit
    FOR EACH STATEMENT EXECUTE FUNCTION loom_audit_append_only();

-- Up to when the histories of a task queue have been read for acts.
CREATE TABLE loom_audit_reading (
    server text NOT NULL,                           -- the id of the namespace on a server
    task_queue text NOT NULL,
    read_until timestamptz NOT NULL,
    PRIMARY KEY (server, task_queue)
);
