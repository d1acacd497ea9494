-- The keys that encrypt the data of tenants. Each is encrypted itself, with a key of the stack, which isn't in the database.
CREATE TABLE loom_data_keys (
    id text PRIMARY KEY,                            -- stored beside everything that the key has encrypted
    tenant text NOT NULL,                           -- '': the key that hides the words of the search index
    wrapped bytea,                                  -- NULL: forgotten, and with it what the key has encrypted
    wrapped_by text NOT NULL,                       -- the id of the stack's key
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    forgotten_at timestamptz,
    CHECK ((wrapped IS NULL) = (forgotten_at IS NOT NULL))
);
CREATE INDEX loom_data_keys_tenant ON loom_data_keys (tenant, created_at DESC) WHERE wrapped IS NOT NULL;
