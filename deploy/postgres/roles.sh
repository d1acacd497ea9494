#!/bin/sh
# Runs once, when the database cluster is new. Loom and Temporal connect as roles of their own, which own their databases
# and have no other rights. `vector` isn't a trusted extension, so the superuser creates it. `btree_gin`, which Temporal
# needs, is trusted.
set -eu
run() { psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" "$@"; }

run --dbname postgres <<'SQL'
\getenv loom LOOM_PASSWORD
\getenv temporal TEMPORAL_PASSWORD
CREATE ROLE loom LOGIN PASSWORD :'loom';
CREATE ROLE temporal LOGIN PASSWORD :'temporal';
CREATE DATABASE loom OWNER loom;
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
REVOKE CONNECT ON DATABASE postgres, template1, loom, temporal, temporal_visibility FROM PUBLIC;
SQL
run --dbname loom --command 'CREATE EXTENSION vector'
