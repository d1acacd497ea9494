"""Plan and apply the changes that restore a workspace to another state.

A snapshot is taken just before a restore. Only files that are in that snapshot and still have the same marks are
written or removed, so a restore can always be undone. Paths are opened one folder at a time without following links, so
that files outside the workspace are never changed.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from loom.activities.adapters.snapshots.store import Blobs, StoredTree
from loom.activities.adapters.snapshots.walk import Mark, mark
from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace.paths import HIDDEN, READ_ONLY

_Operation: TypeAlias = Callable[[int, str, str], None]
"""An operation in an open folder. It receives the folder's descriptor, the name in the folder, and the path."""

LINK: Final = "120000"
EXECUTABLE: Final = "100755"
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The new content of a file or link."""

    oid: str
    mode: int | None
    """The permissions, or None for a link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreChanges:
    """The changes that a restore makes, in this order. Paths are relative to the workspace."""

    remove: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    """Folders to remove if they are empty, deepest first."""
    make: tuple[str, ...] = ()
    """Folders to create, topmost first."""
    write: Mapping[str, Content] = field(default_factory=dict)
    permit: Mapping[str, int] = field(default_factory=dict)
    """Files and new folders whose permissions change."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Paths that differ but aren't changed, each with the reason."""

    @property
    def is_empty(self) -> bool:
        """Whether there are no changes."""
        return not (self.remove or self.drop or self.make or self.write or self.permit)


def plan(now: StoredTree, target: StoredTree) -> RestoreChanges:
    """Return the changes that convert a workspace from the `now` state to the `target` state."""
    differ = sorted(
        path for path in now.files.keys() | target.files.keys() if _state(now, path) != _state(target, path)
    )
    left = {path: reason for path in differ if (reason := _untouchable(path, now, target)) is not None}
    todo = [path for path in differ if path not in left]
    same = {path for path in todo if _is_same_content(now, target, path)}
    here, there = _folders(now), _folders(target)
    new = sorted(there - here)
    return RestoreChanges(
        remove=tuple(path for path in todo if path not in target.files),
        drop=tuple(sorted(here - there, key=lambda path: (-path.count("/"), path))),
        make=tuple(new),
        write={path: _content(target, path) for path in todo if path in target.files and path not in same},
        permit={path: _mode(target, path) for path in sorted(same)}
        | {folder: target.facts.modes[folder] for folder in new if folder in target.facts.modes},
        left=left,
    )


def _state(kept: StoredTree, path: str) -> tuple[str, str, int] | None:
    found = kept.files.get(path)
    return None if found is None else (*found, _mode(kept, path))


def _mode(kept: StoredTree, path: str) -> int:
    usual = 0o755 if kept.files[path][0] == EXECUTABLE else 0o644
    return kept.facts.modes.get(path, usual)


def _content(kept: StoredTree, path: str) -> Content:
    mode, oid = kept.files[path]
    return Content(oid=oid, mode=None if mode == LINK else _mode(kept, path))


def _is_same_content(now: StoredTree, target: StoredTree, path: str) -> bool:
    ours, theirs = now.files.get(path), target.files.get(path)
    return ours is not None and theirs is not None and ours[1] == theirs[1] and (ours[0] == LINK) == (theirs[0] == LINK)


def _untouchable(path: str, now: StoredTree, target: StoredTree) -> str | None:
    """Return the reason why a path must not be changed, or None if it may be changed. Protected paths and paths without
    content in a snapshot aren't changed.
    """
    if any(part == HIDDEN or part.lower() == READ_ONLY for part in path.split("/")):
        return "protected"
    for place in _with_parents(path):
        if place in now.facts.not_kept:
            return f"not in the snapshot taken before the restore: {now.facts.not_kept[place]}"
        if place in target.facts.not_kept:
            return f"not in the snapshot: {target.facts.not_kept[place]}"
    return None


def _folders(kept: StoredTree) -> set[str]:
    places = {folder for path in kept.files for folder in _parents(path)}
    return places.union(*(_with_parents(folder) for folder in kept.facts.empty))


def _with_parents(path: str) -> Iterator[str]:
    yield path
    yield from _parents(path)


def _parents(path: str) -> Iterator[str]:
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path


class Restoration:
    """Applies changes. Afterward, `left` contains the paths of the changes that failed, each with the reason."""

    def __init__(self, workspace: Path, marks: Mapping[str, Mark], blobs: Blobs) -> None:
        """`marks` contains the marks of all files in the snapshot that was taken just before the restore."""
        self._root = str(workspace)
        self._marks = marks
        self._blobs = blobs
        self.left: dict[str, str] = {}

    def perform(self, todo: RestoreChanges) -> None:
        """Apply all changes. If a change fails, its path is left unchanged."""
        for path in todo.remove:
            self._do(path, self._remove)
        for path in todo.drop:
            self._do(path, _drop)
        for path in todo.make:
            self._do(path, _make)
        for path, content in todo.write.items():
            self._do(path, partial(self._write, content=content))
        for path, mode in todo.permit.items():
            self._do(path, partial(_permit, mode=mode))

    def _do(self, path: str, step: _Operation) -> None:
        *folders, name = path.split("/")
        try:
            with beneath.folder(self._root, folders) as parent:
                step(parent, name, path)
        except OSError as error:
            self.left[path] = error.strerror or str(error)

    def _remove(self, parent: int, name: str, path: str) -> None:
        self._check(parent, name, path)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)

    def _write(self, parent: int, name: str, path: str, *, content: Content) -> None:
        data = self._blobs.read(content.oid)
        self._check(parent, name, path)
        draft = beneath.draft_name()
        try:
            _write_draft(parent, draft, name, data, content.mode)
            os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=parent)
            raise

    def _check(self, parent: int, name: str, path: str) -> None:
        """Raise OSError if the path has changed since the snapshot that was taken just before the restore."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if _lasting(mark(status)) != _lasting(self._marks.get(path, ())):
            raise OSError("it has changed since the snapshot that was taken before the restore")


def _drop(parent: int, name: str, _: str) -> None:
    with suppress(OSError):  # the folder contains a file that this restore must not remove
        os.rmdir(name, dir_fd=parent)


def _make(parent: int, name: str, _: str) -> None:
    os.mkdir(name, dir_fd=parent)


def _permit(parent: int, name: str, _: str, *, mode: int) -> None:
    opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if stat.S_ISLNK(os.fstat(opened).st_mode):
            raise OSError("it is a link now")
        Path(f"/proc/self/fd/{opened}").chmod(mode)
    finally:
        os.close(opened)


def _lasting(marks: Mark) -> Mark:
    """Return the marks without ctime, which changes when another hard link to the file is removed."""
    return marks[:3] + marks[4:]


def _write_draft(parent: int, draft: str, name: str, data: bytes, mode: int | None) -> None:
    """Create the new file under a temporary name. Until its permissions are set, only its owner can open it."""
    if mode is None:
        os.symlink(os.fsdecode(data), draft, dir_fd=parent)
        return
    opened = os.open(draft, _DRAFT, 0o600, dir_fd=parent)
    with os.fdopen(opened, "wb") as file:
        file.write(data)
        owner = _owner(parent, name)
        with suppress(PermissionError):
            os.fchown(opened, owner.st_uid, owner.st_gid)
        os.fchmod(opened, mode)


def _owner(parent: int, name: str) -> os.stat_result:
    """Return the status of a file, or of its folder if the file doesn't exist. Callers need the owner from the status,
    because root may restore another user's files.
    """
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return os.fstat(parent)
