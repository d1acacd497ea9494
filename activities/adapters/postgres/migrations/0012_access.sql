-- Bearer tokens of the HTTP service.
CREATE TABLE loom_access_tokens (
    id text PRIMARY KEY,                            -- what people see of a token
    hash bytea NOT NULL UNIQUE,                     -- SHA-256 of the token, which itself is stored nowhere
    name text NOT NULL,
    role text NOT NULL,
    tenant text,                                    -- NULL: all tenants
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz                          -- a revoked token is kept, so that a service without valid tokens stays closed
);

-- Approvals of calls that need more than one, until there are enough of them.
CREATE TABLE loom_call_approvals (
    run_id text NOT NULL,
    call_id text NOT NULL,
    asked_at text NOT NULL,                         -- with the call, names one request for approval
    decision bytea NOT NULL,                        -- SHA-256 of what exactly was approved
    approver text NOT NULL,
    approved_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, call_id, asked_at, decision, approver)
);
