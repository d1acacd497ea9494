"""The parts of the host's file system that a sandboxed command sees besides its workspace: the system's programs and
settings, the worker's interpreter, and the folders that the settings open. Everything else on the host is absent. In
these parts, private files and folders are hidden.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from loom.activities.adapters.sandbox.open_files import refuse_if_exhausted

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/sys"),
    *("/nix/store", "/gnu/store"),
)
"""Folders with programs and their settings. They exist on every machine, or contain only public packages."""

HIDDEN_FOLDERS: Final = (
    *("/root", "/home", "/run", "/mnt", "/media", "/var/run", "/var/spool", "/var/backups", "/var/log"),
    *("/etc/ssh", "/etc/ssl/private", "/etc/kubernetes", "/etc/wireguard", "/etc/NetworkManager/system-connections"),
    *("/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/postgresql", "/var/lib/mysql"),
    "/var/lib/redis",
)
"""Folders with home directories, keys, and other services' data and sockets. They are also hidden in a workspace or an
opened folder that contains them. A read-only mount doesn't prevent connections to a socket.
"""

HIDDEN_FILES: Final = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/krb5.keytab")
TEMPORARY: Final = Path("/tmp")  # noqa: S108 - the sandbox has its own /tmp
TEMPORARIES: Final = (TEMPORARY, Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108
"""In-memory folders, which are created empty for each command."""

_LISTENS: Final = "00010000"
"""The flag that marks a listening socket in /proc/net/unix."""
_SHARE: Final = 50


def interpreter_folders() -> tuple[Path, ...]:
    """Return the folders of the worker's Python installation that are outside the system. Commands of the `python` tool
    need them, wherever they are.
    """
    named = Path(sys.base_prefix)
    return outside_the_system((named, named.resolve()))


def outside_the_system(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Return the folders that commands don't see yet, without repetitions."""
    return tuple(folder for folder in dict.fromkeys(folders) if folder != folder.parent and not _is_in_system(folder))


def _is_in_system(folder: Path) -> bool:
    return any(folder.is_relative_to(each) for each in SYSTEM)


def system_mounts() -> Iterator[str]:
    """Return the mounts of the system, which are read-only. On most machines, some of the folders are links."""
    for folder in map(Path, SYSTEM):
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))


def hidden_folders(further: Sequence[Path]) -> list[Path]:
    """Return the folders to hide, including the user's home directory. Folders that don't exist or that the worker's
    user can't open are omitted. Parent folders come first.
    """
    home = [Path.home()] if _may_be_hidden(Path.home()) else []
    folders = (*map(Path, HIDDEN_FOLDERS), *further, *home)
    return sorted({folder.resolve() for folder in folders if folder.is_dir() and _is_open(folder)})


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK) or os.access(folder, os.X_OK)


def _may_be_hidden(home: Path) -> bool:
    """Whether the home directory can be hidden. A service's home may be `/` or `/usr/…`, which every program needs."""
    return len(home.parts) > 2 and home.parts[1] not in ("usr", "bin", "sbin", "lib", "lib64", "etc", "dev", "proc")


@dataclass(slots=True)
class PrivateSettings:
    """Finds the entries of `/etc` that only their owner or group may read, such as keys and passwords of services. The
    worker's user may be that owner, for example if it is root. The result is cached for fifty times as long as the
    search took.
    """

    _until: float = 0.0
    _found: tuple[Path, ...] = field(default=())

    def present(self) -> tuple[Path, ...]:
        """Return the entries that exist now. A folder stands for everything in it."""
        begun = monotonic()
        if begun >= self._until:
            self._found = tuple(sorted(_private(Path("/etc"))))
            now = monotonic()
            self._until = now + _SHARE * (now - begun)
        named = (*map(Path, HIDDEN_FILES), *self._found)
        return tuple(path for path in dict.fromkeys(named) if os.access(path, os.R_OK))


def _private(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = [(Path(entry.path), entry.stat(follow_symlinks=False).st_mode) for entry in entries]
    except OSError as error:
        refuse_if_exhausted(error, str(folder))
        return  # this user can't read it, or it has just been removed
    for path, mode in found:
        if not stat.S_ISLNK(mode) and not mode & stat.S_IROTH:
            yield path
        elif stat.S_ISDIR(mode):
            yield from _private(path)


def listening_sockets(visible: Sequence[Path], covered: Sequence[Path], workspace: Path) -> list[str]:
    """Return the host services' sockets that are in a visible folder and not in a covered one. A command could connect
    to any socket that it can see.
    """
    try:
        text = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        refuse_if_exhausted(error, "/proc/net/unix")
        return []
    lines = (line.split(maxsplit=7) for line in text.splitlines() if _LISTENS in line)
    names = {words[7] for words in lines if len(words) == 8 and words[3] == _LISTENS}
    found = {os.path.realpath(name) for name in names if name.startswith("/")}
    shown = (*visible, workspace)
    return sorted(name for name in found if is_visible(Path(name), shown, covered) and _is_socket(name))


def is_visible(path: Path, shown: Sequence[Path], covered: Sequence[Path]) -> bool:
    """Whether a command sees a path, because the innermost of these folders that contains it is shown."""

    def depth(folders: Sequence[Path]) -> int:
        return max((len(folder.parts) for folder in folders if path.is_relative_to(folder)), default=0)

    return depth(shown) > depth(covered)


def _is_socket(name: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(name).st_mode)
    except OSError:
        return False
