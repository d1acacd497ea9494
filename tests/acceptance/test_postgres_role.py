"""The role with which workers use Postgres owns its database, and may do nothing else on the server."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from loom.stack import up_down as stack
from loom.stack.home import password
from loom.stack.plan import Plan
from loom.stack.postgres import _ensure_database, _programs, admin_address

SCRIPT = Path(__file__).parents[2] / "deploy/postgres/roles.sh"
FORBIDDEN = (
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/loom-test'",
    "CREATE ROLE other SUPERUSER",
    "ALTER ROLE loom SUPERUSER",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    "ALTER SYSTEM SET shared_preload_libraries = 'x'",
    "LOAD '/tmp/x.so'",
    "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '/tmp/x.so'",
    "CREATE DATABASE other",
    "SELECT rolpassword FROM pg_authid",
)
AS_BEFORE = """
DROP DATABASE loom;
DROP ROLE loom;
CREATE ROLE former SUPERUSER LOGIN PASSWORD 'former'
"""
OF_THE_WORKER = """
CREATE EXTENSION vector;
CREATE TABLE facts (id int GENERATED ALWAYS AS IDENTITY, nearness vector);
CREATE SEQUENCE numbers;
CREATE VIEW latest AS SELECT * FROM facts;
CREATE FUNCTION touched() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE SCHEMA own;
CREATE TABLE own.table_of_an_app (id int);
"""
OWNED = """
ALTER TABLE facts ADD COLUMN text text;
ALTER SEQUENCE numbers RESTART;
CREATE OR REPLACE VIEW latest AS SELECT * FROM facts;
CREATE OR REPLACE FUNCTION touched() RETURNS int LANGUAGE sql AS 'SELECT 2';
ALTER TABLE own.table_of_an_app ADD COLUMN text text;
CREATE TABLE own.another (id int);
CREATE TABLE more (nearness vector);
"""


@dataclass(frozen=True)
class Server:
    home: Path
    port: int
    url: str
    """The address that a worker gets."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("stack") / ".loom"
    url = str(stack.up_detached(Plan(home=home, worker=None)).parts["postgres"].address)
    yield Server(home=home, port=urlsplit(url).port or 0, url=url)
    stack.down(home)


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statement.split(";\n"):
            connection.execute(each.encode())


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_a_worker_can_do_nothing_outside_its_database(server: Server, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(server.url, statement)


def test_the_superuser_of_an_earlier_release_becomes_an_ordinary_role_that_owns_what_it_owned(server: Server) -> None:
    admin, port = admin_address(server.home, server.port), server.port
    run(f"{admin}/postgres", AS_BEFORE)
    former = f"postgresql://former:former@127.0.0.1:{port}/postgres"
    run(former, f"ALTER ROLE postgres RENAME TO loom;\nALTER ROLE loom PASSWORD '{password(server.home)}'")
    run(f"{server.url.removesuffix('loom')}postgres", "DROP ROLE former;\nCREATE DATABASE loom")
    run(server.url, OF_THE_WORKER)

    for _ in range(2):
        _ensure_database(server.home, port)

    run(server.url, OWNED)
    for statement in FORBIDDEN:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(server.url, statement)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        run(f"postgresql://postgres:{password(server.home)}@127.0.0.1:{port}/loom", "SELECT 1")


def test_the_script_of_the_compose_file_creates_such_roles_for_loom_and_temporal(server: Server) -> None:
    admin = admin_address(server.home, server.port)
    run(f"{admin}/postgres", "DROP DATABASE loom;\nDROP ROLE loom")
    parts = urlsplit(admin)
    environment = {
        "PATH": f"{_programs()}:/usr/bin:/bin",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "PGPASSWORD": str(parts.password),
        "POSTGRES_USER": str(parts.username),
        "LOOM_PASSWORD": password(server.home),
        "TEMPORAL_PASSWORD": "it's Temporal's",
    }
    subprocess.run([SCRIPT], env=environment, check=True)

    temporal = f"host=127.0.0.1 port={server.port} user=temporal password='it\\'s Temporal\\'s' dbname="
    run(server.url, "CREATE TABLE near (nearness vector)")
    for database in ("temporal", "temporal_visibility"):
        run(temporal + database, "CREATE TABLE executions (id int)")
    for url in (server.url, f"{temporal}temporal"):
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                run(url, statement)
    for database in ("loom", "postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            run(temporal + database, "SELECT 1")
