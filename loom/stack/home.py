"""Create, check and lock the embedded stack's directory."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loom.stack.errors import AlreadySupervised, StackError
from loom.stack.state import LOCK

ROOM_TO_BEGIN = 150 * 2**20
"""Free bytes that a new stack requires. A new stack occupies 50 MB, and the rest prevents the disk from filling up."""
ROOM_TO_GO_ON = 30 * 2**20
"""Free bytes that a stack with existing data requires."""
LOG_LIMIT = 20 * 2**20


def prepare(home: Path) -> None:
    """Create the directory. Raises `StackError` if it isn't writable or doesn't have enough free space."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        (home / "logs").mkdir(exist_ok=True)
        (home / ".gitignore").write_text("*\n")  # the home is often in a project's folder
        probe = home / f".writable-{os.getpid()}"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink(missing_ok=True)  # two threads of one process may run this check at the same time
        free = shutil.disk_usage(home).free
    except OSError as error:
        raise StackError(
            f"cannot write to {home}: {error.strerror}. Set LOOM_HOME to a directory that you can write to.",
            home=str(home),
        ) from None
    room = ROOM_TO_GO_ON if (home / "postgres").exists() else ROOM_TO_BEGIN
    if free < room:
        raise StackError(
            f"only {free // 2**20} MB are free in {home}, but the embedded stack needs {room // 2**20} MB. "
            "Free some space, or set LOOM_HOME to a directory on another disk.",
            home=str(home),
            free=free,
        )


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Lock the home. Raises `AlreadySupervised` if another process holds the lock.

    The kernel releases the lock when the process ends, even if it crashes.
    """
    with (home / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadySupervised(f"another process supervises {home}", home=str(home)) from None
        yield


def log_path(home: Path, part: str) -> Path:
    """Return the path of a service's log file. A long log is rotated first, and one old file is kept."""
    path = home / "logs" / f"{part}.log"
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.replace(path.with_suffix(".log.1"))
    return path


def password(home: Path, name: str = "password") -> str:
    """Return the password in the file with this name, which is generated once. The default is the password that workers
    use for this home's Postgres and Redis.

    The password prevents other users of this machine from accessing the stack's data.
    """
    path = home / name
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16), encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
