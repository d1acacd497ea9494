"""From one state of a workspace to another: what has to be done, as a value, and doing it.

Written and removed is only what the snapshot taken just before holds, and only while it still has the marks that it had
then: what a restore takes away can be brought back. Folders are entered step by step without following a link, so that
nothing outside the workspace is touched.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Final, TypeAlias

from loom.activities.adapters.snapshots.store import Blobs, Kept
from loom.activities.adapters.snapshots.walk import Mark, mark
from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace.paths import HIDDEN, READ_ONLY

_Step: TypeAlias = Callable[[int, str, str], None]
"""Does something in an open folder: its descriptor, the name there, and the path that both come from."""

LINK: Final = "120000"
EXECUTABLE: Final = "100755"
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a file or link is to become."""

    oid: str
    mode: int | None
    """Permissions; None for a link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a restore does, in this order; paths are relative to the workspace."""

    remove: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    """Folders to remove if they are empty by then, deepest first."""
    make: tuple[str, ...] = ()
    """Folders to make, topmost first."""
    write: Mapping[str, Content] = field(default_factory=dict)
    permit: Mapping[str, int] = field(default_factory=dict)
    """Files and new folders that only get other permissions."""
    left: Mapping[str, str] = field(default_factory=dict)
    """What differs and is left as it is, with the reason."""

    @property
    def is_empty(self) -> bool:
        """There is nothing to do."""
        return not (self.remove or self.drop or self.make or self.write or self.permit)


def plan(now: Kept, target: Kept) -> Plan:
    """How a workspace in the state `now` gets to be in the state `target`."""
    differ = sorted(
        path for path in now.files.keys() | target.files.keys() if _state(now, path) != _state(target, path)
    )
    left = {path: reason for path in differ if (reason := _untouchable(path, now, target)) is not None}
    todo = [path for path in differ if path not in left]
    same = {path for path in todo if _is_same_content(now, target, path)}
    here, there = _folders(now), _folders(target)
    new = sorted(there - here)
    return Plan(
        remove=tuple(path for path in todo if path not in target.files),
        drop=tuple(sorted(here - there, key=lambda path: (-path.count("/"), path))),
        make=tuple(new),
        write={path: _content(target, path) for path in todo if path in target.files and path not in same},
        permit={path: _mode(target, path) for path in sorted(same)}
        | {folder: target.facts.modes[folder] for folder in new if folder in target.facts.modes},
        left=left,
    )


def _state(kept: Kept, path: str) -> tuple[str, str, int] | None:
    found = kept.files.get(path)
    return None if found is None else (*found, _mode(kept, path))


def _mode(kept: Kept, path: str) -> int:
    usual = 0o755 if kept.files[path][0] == EXECUTABLE else 0o644
    return kept.facts.modes.get(path, usual)


def _content(kept: Kept, path: str) -> Content:
    mode, oid = kept.files[path]
    return Content(oid=oid, mode=None if mode == LINK else _mode(kept, path))


def _is_same_content(now: Kept, target: Kept, path: str) -> bool:
    ours, theirs = now.files.get(path), target.files.get(path)
    return ours is not None and theirs is not None and ours[1] == theirs[1] and (ours[0] == LINK) == (theirs[0] == LINK)


def _untouchable(path: str, now: Kept, target: Kept) -> str | None:
    """Why a path must be left alone: one of the two states does not say what is there."""
    if any(part == HIDDEN or part.lower() == READ_ONLY for part in path.split("/")):
        return "protected"
    for place in _with_parents(path):
        if place in now.facts.not_kept:
            return f"not in the snapshot taken before the restore: {now.facts.not_kept[place]}"
        if place in target.facts.not_kept:
            return f"not in the snapshot: {target.facts.not_kept[place]}"
    return None


def _folders(kept: Kept) -> set[str]:
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
    """Carries out a plan; `left` then says what could not be done, with the reason."""

    def __init__(self, workspace: Path, marks: Mapping[str, Mark], blobs: Blobs) -> None:
        """`marks`: of everything that the snapshot taken just before holds."""
        self._root = str(workspace)
        self._marks = marks
        self._blobs = blobs
        self.left: dict[str, str] = {}

    def perform(self, todo: Plan) -> None:
        """Do it all; what fails is left as it is."""
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

    def _do(self, path: str, step: _Step) -> None:
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
        draft = f".loom-draft-{token_hex(6)}"
        try:
            _write_draft(parent, draft, name, data, content.mode)
            os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=parent)
            raise

    def _check(self, parent: int, name: str, path: str) -> None:
        """Raise OSError when something is there that the snapshot taken just before does not hold."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if _lasting(mark(status)) != _lasting(self._marks.get(path, ())):
            raise OSError("it has changed since the snapshot that was taken before the restore")


def _drop(parent: int, name: str, _: str) -> None:
    with suppress(OSError):  # something is in it that is not ours to remove
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
    """Marks without ctime, which changes with the number of a file's names: another one may have gone before it."""
    return marks[:3] + marks[4:]


def _write_draft(parent: int, draft: str, name: str, data: bytes, mode: int | None) -> None:
    """The new file under a name of its own: nobody but its owner can open it before it has its permissions."""
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
    """Whose a file is, or would be: root may restore what is somebody else's."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return os.fstat(parent)
