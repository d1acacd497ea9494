"""Create placeholders that occupy names in a workspace while commands are running in it.

On each machine, the last command to end removes the placeholders, no matter which worker runs it. While a command is
running, it holds a shared lock for its workspace. The lock is on one byte of a file that isn't visible in any sandbox.
Placeholders have a mode that is rare for other files. The next command can therefore recognize and remove the
placeholders of a killed worker.
"""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from loom.activities.toolbox.workspace.paths import PLACEHOLDER, is_placeholder
from loom.domain.core.errors import ToolExecutionError

_BYTES: Final = 2**62
_LOCK: Final = "hhqqi0q"
"""`struct flock`: type, whence, start, length, process."""


@contextmanager
def occupied_names(workspace: int, names: Sequence[str]) -> Iterator[None]:
    """Occupy these names in the workspace. If a name doesn't exist, create a placeholder for it. `workspace` is a file
    descriptor.

    A placeholder is an empty folder, because programs that walk a workspace know what to do with one: `tar` and `cp -r`
    copy it without a warning, and Git never lists it. Git also ignores an empty `.git`, and uses the repository that
    contains the workspace.
    """
    lock, place = _lock(workspace)
    try:
        for name in names:
            with suppress(OSError):  # the name exists, or neither Loom nor a command is permitted to create it
                os.mkdir(name, PLACEHOLDER, dir_fd=workspace)
        yield
    finally:
        if _is_last(lock, place):
            for name in names:
                _take_away(workspace, name)
        os.close(lock)


def _lock(workspace: int) -> tuple[int, int]:
    """Take a shared lock. Return the file's descriptor and the locked byte."""
    status = os.fstat(workspace)
    place = (status.st_dev * 2654435761 + status.st_ino) % _BYTES
    path = Path(gettempdir(), f"loom-{os.geteuid()}.lock")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.fcntl(lock, fcntl.F_OFD_SETLKW, struct.pack(_LOCK, fcntl.F_RDLCK, os.SEEK_SET, place, 1, 0))
    except OSError as error:
        raise ToolExecutionError(f"{path} cannot be locked ({error.strerror}): nothing was run") from None
    return lock, place


def _is_last(lock: int, place: int) -> bool:
    try:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
    except OSError:
        return False
    return True


def _take_away(workspace: int, name: str) -> None:
    """Remove only placeholders, including the sockets of earlier releases. A folder that isn't empty is kept."""
    with suppress(OSError):
        mode = os.stat(name, dir_fd=workspace, follow_symlinks=False).st_mode
        if not is_placeholder(mode):
            return
        if stat.S_ISDIR(mode):
            os.rmdir(name, dir_fd=workspace)
        elif stat.S_ISSOCK(mode):
            os.unlink(name, dir_fd=workspace)
