"""Stores in Loom's own Postgres: memory, knowledge bases, payloads, artifacts and the effect ledger.

`database` is the connection pool that they share, and `schema_migrations` creates their tables. `deletion` and
`retention` delete the data that runs have stored in them, and `collection` deletes what no run on the server needs.
"""
