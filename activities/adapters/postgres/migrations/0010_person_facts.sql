-- What people prefer, have decided or have corrected. Each row belongs to one user of one tenant; '' stands for no tenant,
-- and, as the user, for everybody in the tenant.
CREATE TABLE loom_person_facts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    user_id text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('preference', 'decision', 'correction')),
    content text NOT NULL,
    fingerprint bytea NOT NULL,
    source text NOT NULL CHECK (source IN ('rule', 'distilled', 'added')),
    session_id text NOT NULL,                       -- where the person said it; '': nowhere, somebody added it
    run_id text NOT NULL,
    task_id text NOT NULL,
    created_at timestamptz NOT NULL,                -- when the person said it last
    model text,                                     -- of the vector
    dimension int,
    embedding vector,
    CHECK (tenant <> '' OR user_id <> ''),
    CHECK (embedding IS NULL OR model IS NOT NULL), -- a model without a vector refuses the text
    UNIQUE (tenant, user_id, fingerprint)
);
CREATE INDEX loom_person_facts_newest ON loom_person_facts (tenant, user_id, created_at DESC, id DESC);
CREATE INDEX loom_person_facts_session ON loom_person_facts (session_id) WHERE session_id <> '';
CREATE INDEX loom_person_facts_without_vector ON loom_person_facts (id) WHERE model IS NULL;

-- What was forgotten: the same words, said until then, never come back, for example from the bus or from a history.
CREATE TABLE loom_person_facts_forgotten (
    owner bytea NOT NULL,                           -- SHA-256 of the tenant and the user
    fact bytea NOT NULL,                            -- SHA-256 of the owner and the fact's fingerprint; '': every fact
    until timestamptz NOT NULL,
    PRIMARY KEY (owner, fact)
);
