-- The runs of tenants whose number of concurrent runs is limited, from their preparation to their end.
CREATE TABLE loom_tenant_runs (
    run_id text PRIMARY KEY,
    tenant text NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,      -- in the order of joining
    checked_at timestamptz                          -- NULL: waits; else when the run was last known to be running
);
CREATE INDEX loom_tenant_runs_tenant ON loom_tenant_runs (tenant, place);

-- What a tenant's runs have used on one day (UTC), including what is reserved for calls in progress.
CREATE TABLE loom_tenant_days (
    tenant text NOT NULL,
    day date NOT NULL,
    tokens bigint NOT NULL,
    micros bigint NOT NULL,                         -- millionths of a US dollar
    PRIMARY KEY (tenant, day)
);
