"""Scan a workspace for files and links. The scan records marks that are later used to detect changes.

The scan doesn't follow links and doesn't write files. If a file changes during the scan, no error occurs. The scan
excludes `.git`, Loom's own state, and folders that a command can recreate (`REGENERABLE` and folders that are marked as
caches).
"""

import errno
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from loom.activities.ports import StoreUnavailable
from loom.activities.toolbox.workspace.confined_open import is_draft
from loom.activities.toolbox.workspace.paths import HIDDEN, READ_ONLY, REGENERABLE, is_placeholder

LARGEST: Final = 50 * 2**20
"""Maximum size of a file in bytes. Larger files aren't stored."""
MOST: Final = 200_000
"""Maximum number of files and folders in a workspace. A larger workspace can't be stored."""
DEEPEST: Final = 200

_CACHE: Final = "CACHEDIR.TAG"
_CACHE_SIGNATURE: Final = b"Signature: 8a477f597d28d172789f06886806bc55"
_VENV: Final = "pyvenv.cfg"
_OF_A_VENV: Final = frozenset({_VENV, "bin", "include", "lib", "lib64", "share", "etc", "man", ".gitignore"})
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOVED_ON: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
"""Errors that occur if an entry has been deleted or replaced since it was listed."""

Mark: TypeAlias = tuple[int, ...]
"""Mode, size, mtime, ctime and inode of a file. If these values haven't changed, the file hasn't changed. An empty mark
means that the file may have changed.
"""


class TooManyFiles(StoreUnavailable):
    """The workspace has more files than a snapshot may have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Information about a workspace that Git trees don't record. Paths are relative to the workspace."""

    empty: tuple[str, ...] = ()
    """Folders without content to store."""
    modes: Mapping[str, int] = field(default_factory=dict)
    """File permissions other than 0644 and 0755."""
    not_kept: Mapping[str, str] = field(default_factory=dict)
    """Existing paths that aren't in the snapshot, each with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """The result of a scan."""

    files: Mapping[str, Mark]
    """Files and links."""
    fresh: frozenset[str]
    """Files that were changed so recently that another change might leave their marks unchanged."""
    facts: Facts


def mark(status: os.stat_result) -> Mark:
    """Return the mark that identifies a file's state. It includes ctime, which users can't set."""
    return (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def scan(workspace: Path, hidden: Path, settled: float) -> Scan:
    """Scan the whole workspace except `hidden`. Files that changed less than `settled` seconds ago are fresh."""
    walk = _Walk(hidden=_home(hidden), fresh_from=time.time_ns() - int(settled * 1e9))
    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if walk.hidden == _identity(os.fstat(root)):
            raise StoreUnavailable(f"{workspace} is Loom's own state (LOOM_HOME): work in another folder")
        walk.below(root, "", 0, _names(root))
    finally:
        os.close(root)
    facts = Facts(
        empty=tuple(sorted(walk.empty)),
        modes=dict(sorted(walk.modes.items())),
        not_kept=dict(sorted(walk.not_kept.items())),
    )
    return Scan(files=walk.files, fresh=frozenset(walk.fresh), facts=facts)


@dataclass(slots=True)
class _Walk:
    """A scan in progress, with its results so far."""

    hidden: tuple[int, int] | None
    fresh_from: int
    count: int = 0
    files: dict[str, Mark] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    empty: list[str] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    not_kept: dict[str, str] = field(default_factory=dict)

    def below(self, here: int, prefix: str, depth: int, names: list[str]) -> bool:
        """Scan the open folder. Return False if it has no content to store."""
        self.count += len(names)
        if self.count > MOST:
            raise TooManyFiles(
                f"the workspace has more than {MOST:,} files and folders, which is too many for snapshots: start the"
                " run in a smaller folder, or set LOOM_SNAPSHOTS=off"
            )
        kept = False
        for name in names:
            try:
                kept |= self._entry(here, name, prefix + name, depth)
            except OSError as error:
                self.lost(prefix + name, error)
        return kept

    def lost(self, path: str, error: OSError) -> None:
        """Record a path that can't be read, unless it has been deleted or replaced since it was listed."""
        if error.errno not in MOVED_ON:
            self.not_kept[path] = error.strerror or str(error)

    def _entry(self, here: int, name: str, path: str, depth: int) -> bool:
        status = os.stat(name, dir_fd=here, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            return self._folder(here, name, path, depth, status)
        if name.lower() == READ_ONLY:  # in a worktree or submodule, this is a file that names the repository
            return False
        if is_draft(name):
            return False
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            self.not_kept[path] = "a pipe, socket or device"
            return False
        if status.st_size > LARGEST:
            self.not_kept[path] = f"larger than {LARGEST // 2**20} MB"
            return False
        self._file(path, status)
        return True

    def _file(self, path: str, status: os.stat_result) -> None:
        self.files[path] = mark(status)
        if max(status.st_mtime_ns, status.st_ctime_ns) >= self.fresh_from:
            self.fresh.add(path)
        mode = status.st_mode & 0o777
        if mode not in (0o644, 0o755) and stat.S_ISREG(status.st_mode):
            self.modes[path] = mode

    def _folder(self, here: int, name: str, path: str, depth: int, status: os.stat_result) -> bool:
        if self._is_left_out(name, status):
            return False
        if depth >= DEEPEST:
            self.not_kept[path] = f"more than {DEEPEST} folders deep"
            return False
        below = os.open(name, _FOLDER, dir_fd=here)
        try:
            self._open_folder(below, path, depth, status)
        finally:
            os.close(below)
        return path not in self.not_kept

    def _is_left_out(self, name: str, status: os.stat_result) -> bool:
        return name in REGENERABLE or name == HIDDEN or name.lower() == READ_ONLY or _identity(status) == self.hidden

    def _open_folder(self, below: int, path: str, depth: int, status: os.stat_result) -> None:
        names = _names(below)
        if (reason := _regenerable(below, names)) is not None:
            self.not_kept[path] = reason
            return
        if not self.below(below, f"{path}/", depth + 1, names) and not is_placeholder(status.st_mode):
            self.empty.append(path)
        if (mode := status.st_mode & 0o777) != 0o755:
            self.modes[path] = mode


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _home(folder: Path) -> tuple[int, int] | None:
    try:
        return _identity(folder.stat())
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return (status.st_dev, status.st_ino)


def _regenerable(folder: int, names: list[str]) -> str | None:
    """Return the reason why a folder doesn't need to be stored, or None. The folder's content determines the reason."""
    if _CACHE in names and _begins_with(folder, _CACHE, _CACHE_SIGNATURE):
        return f"a cache, marked by its {_CACHE}"
    # Exclude only the environment itself, because some users create an environment in their source folder.
    return "a virtual environment" if _VENV in names and _OF_A_VENV.issuperset(names) else None


def _begins_with(folder: int, name: str, signature: bytes) -> bool:
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(opened, "rb") as file:
        return stat.S_ISREG(os.fstat(opened).st_mode) and file.read(len(signature)) == signature
