"""Open files inside a folder so that no symbolic link leads out of it, even if a path component is replaced with a link
during the operation.

This module imports only the standard library, because the search process imports no other Loom modules.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Final, Literal, NamedTuple

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for opening a file. They are non-blocking, because opening a pipe without a writer would otherwise block
indefinitely.
"""

_DRAFT: Final = re.compile(r"\.loom-draft-[0-9a-f]{12}")


def draft_name() -> str:
    """Return a new name for a file that will replace another one as soon as it is written."""
    return f".loom-draft-{token_hex(6)}"


def is_draft(name: str) -> bool:
    """Whether a file has such a name. If the worker was killed, it is still there."""
    return _DRAFT.fullmatch(name) is not None


class Entry(NamedTuple):
    """An entry of a folder."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int


class NotAFile(OSError):
    """Raised if the path refers to a device, pipe, socket or folder, but a regular file is required, or to a file from
    outside.
    """


@contextmanager
def folder(root: str, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Provide a descriptor of the `root/parts…` folder. Each component is opened from `/` without following links.

    `root` must already be resolved. Links in its parent folders aren't followed either, because `root` may be in
    another run's workspace and may change in the meantime.
    """
    above = [part for part in root.split("/") if part]
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, part in enumerate((*above, *parts)):
            if create and depth >= len(above):
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
            below = os.open(part, _STEP, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def open_file(root: str, parts: Sequence[str]) -> int:
    """Return a descriptor for reading the regular file `root/parts…`. Raises NotAFile if the file is known to be a hard
    link from outside.
    """
    if not parts:
        raise NotAFile("it is a folder")
    with folder(root, parts[:-1]) as parent:
        opened = os.open(parts[-1], os.O_RDONLY | _FILE, dir_fd=parent)
        around = os.fstat(parent)
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode):
        os.close(opened)
        raise NotAFile("it is not a regular file")
    # Hard links are common: `git clone --local`, pnpm, uv. Their owner is the user who created the folder. A link to
    # another user's file leads out of the workspace.
    if found.st_nlink > 1 and found.st_uid != around.st_uid:
        os.close(opened)
        raise NotAFile("it is a hard link to a file of another user, which is outside the workspace")
    return opened


def entries(root: str, parts: Sequence[str]) -> list[Entry]:
    """Return the entries of the `root/parts…` folder, sorted by name."""
    with _scanned(root, parts) as found:
        return sorted(_entry(each) for each in found)


def names(root: str, parts: Sequence[str]) -> list[str]:
    """Return the sorted names in the `root/parts…` folder, without the cost of looking at each entry."""
    with _scanned(root, parts) as found:
        return sorted(each.name for each in found)


@contextmanager
def _scanned(root: str, parts: Sequence[str]) -> Iterator[Iterator[os.DirEntry[str]]]:
    with folder(root, parts) as here:
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
        try:
            with os.scandir(listing) as found:
                yield found
        finally:
            os.close(listing)


def _entry(found: os.DirEntry[str]) -> Entry:
    if found.is_symlink():
        return Entry(found.name, "link", 0)
    if found.is_dir(follow_symlinks=False):
        return Entry(found.name, "folder", 0)
    if found.is_file(follow_symlinks=False):
        with suppress(FileNotFoundError):
            return Entry(found.name, "file", found.stat(follow_symlinks=False).st_size)
    return Entry(found.name, "other", 0)


def replace_file(root: str, parts: Sequence[str], data: bytes) -> bool:
    """Write `data` to `root/parts…` atomically, with the mode and owner of the replaced file. Return True if the file
    is new.
    """
    with folder(root, parts[:-1], create=True) as parent:
        before = _status(parts[-1], parent)
        if before is not None and not stat.S_ISREG(before.st_mode):
            raise NotAFile("it is not a regular file")
        draft = draft_name()
        try:
            _write(draft, parent, data, before)
            os.replace(draft, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=parent)
            raise
    return before is None


def delete_file(root: str, parts: Sequence[str]) -> None:
    """Delete the file or link `root/parts…`."""
    with folder(root, parts[:-1]) as parent:
        before = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(parts[-1])
        os.unlink(parts[-1], dir_fd=parent)


def _status(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write(name: str, parent: int, data: bytes, like: os.stat_result | None) -> None:
    opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=parent)
    with os.fdopen(opened, "wb") as file:
        if like is not None:
            with suppress(PermissionError):
                os.fchown(opened, like.st_uid, like.st_gid)
            os.fchmod(opened, stat.S_IMODE(like.st_mode))
        file.write(data)
