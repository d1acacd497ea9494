"""Find the files and folders on the host that a sandboxed command must not see. The command may read all other files
and folders.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HIDDEN_FOLDERS: Final = (
    *("/root", "/home", "/run", "/mnt", "/media", "/var/run", "/var/spool", "/var/backups", "/var/log"),
    *("/etc/ssh", "/etc/ssl/private", "/etc/kubernetes", "/etc/wireguard", "/etc/NetworkManager/system-connections"),
    *("/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/postgresql", "/var/lib/mysql"),
    "/var/lib/redis",
)
"""Folders with home directories, keys, and other services' data and sockets. A read-only mount doesn't prevent
connections to a socket.
"""

HIDDEN_FILES: Final = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/krb5.keytab")
TEMPORARY: Final = Path("/tmp")  # noqa: S108 - the sandbox has its own /tmp
TEMPORARIES: Final = (TEMPORARY, Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108
"""In-memory folders, which are created empty for each command."""

_LISTENS: Final = "00010000"
"""The flag that marks a listening socket in /proc/net/unix."""


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


def hidden_files() -> list[str]:
    """Return the files to hide. The worker's user, and therefore a command, could otherwise read them."""
    return [name for name in HIDDEN_FILES if os.access(name, os.R_OK)]


def listening_sockets(covered: Sequence[Path], workspace: Path) -> list[str]:
    """Return the host services' sockets that aren't in a hidden folder. A command could connect to any socket that it
    can see.
    """
    try:
        text = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    hidden = tuple(f"{folder}/" for folder in covered)

    def is_seen(name: str) -> bool:
        return name.startswith(f"{workspace}/") or not name.startswith(hidden)

    lines = (line.split(maxsplit=7) for line in text.splitlines() if _LISTENS in line)
    names = {words[7] for words in lines if len(words) == 8 and words[3] == _LISTENS}
    found = {os.path.realpath(name) for name in names if name.startswith("/") and is_seen(name)}
    return sorted(name for name in found if is_seen(name) and _is_socket(name))


def _is_socket(name: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(name).st_mode)
    except OSError:
        return False
