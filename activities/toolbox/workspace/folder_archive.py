"""Pack files of the workspace into a .tar.gz archive. The same files give the same bytes."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from typing_extensions import Buffer

from loom.activities.toolbox.workspace import paths as workspace
from loom.domain.core.errors import BadRequest, LoomError

MOST_FILES: Final = 10_000
"""The maximum number of files in an archive."""
MOST_FOLDERS: Final = 10_000
"""The maximum number of folders that are searched for them."""
MOST_UNPACKED: Final = 200_000_000
"""The maximum total size of these files in bytes."""
_LEVEL: Final = 6


def files_below(root: Path, folder: Path, home: Path | None) -> tuple[Sequence[Path], int]:
    """Return the regular files below a folder, sorted by path, and how many folders couldn't be read, for example
    because they have been deleted since. Links, `.git` and Loom's own state are left out.

    Raises BadRequest if there are too many files for an archive, or too many folders, and the error of a tool if the
    folder itself can't be read.
    """
    found: list[Path] = []
    unread = folders = 0
    left = [folder]
    while left:
        here = left.pop()
        try:
            entries = list(workspace.visible_entries(root, here, home))
        except LoomError:
            if here == folder:
                raise
            unread += 1
            continue
        found += [here / entry.name for entry in entries if entry.kind == "file"]
        below = [here / entry.name for entry in entries if entry.kind == "folder"]
        left += below
        folders += len(below)
        if len(found) > MOST_FILES:
            raise _too_large(f"more than {MOST_FILES:,} files")
        if folders > MOST_FOLDERS:
            raise _too_large(f"more than {MOST_FOLDERS:,} folders")
    return sorted(found), unread


def packed(root: Path, folder: Path, paths: Sequence[Path], most: int) -> tuple[bytes, int]:
    """Return an archive of these files, and how many of them couldn't be read, for example because they have been
    deleted since. The archive's paths are relative to the folder.

    Raises BadRequest if the files are too large, if the archive has more than `most` bytes, or if a file becomes
    shorter meanwhile. No more than the archive and a piece of a file is in memory.
    """
    target = _Archive(most)
    unpacked = unread = 0
    with (
        gzip.GzipFile(filename="", fileobj=target, mode="wb", compresslevel=_LEVEL, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            try:
                file = workspace.open_file(root, path)
            except LoomError:
                unread += 1
                continue
            with file:
                member = _member(file, path.relative_to(folder).as_posix())
                if (unpacked := unpacked + member.size) > MOST_UNPACKED:
                    raise _too_large(f"more than {MOST_UNPACKED:,} bytes in its files")
                archive.addfile(member, _Pieces(file, target))
    target.refuse_more()
    return target.getvalue(), unread


class _Archive(io.BytesIO):
    """An archive of at most so many bytes. It accepts more, so that its writers can be closed, but discards what
    doesn't fit.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._written = 0

    def write(self, data: Buffer) -> int:
        """See base class."""
        size = memoryview(data).nbytes
        self._written += size
        return super().write(data) if self._written <= self._most else size

    def refuse_more(self) -> None:
        """Raise BadRequest if something didn't fit."""
        if self._written > self._most:
            raise _too_large(f"more than {self._most:,} bytes as an archive")


class _Pieces(io.RawIOBase):
    """The content of a file, which is read as long as it fits into the archive."""

    def __init__(self, file: BinaryIO, target: _Archive) -> None:
        super().__init__()
        self._file = file
        self._target = target

    def read(self, size: int = -1, /) -> bytes:
        """See base class."""
        self._target.refuse_more()
        piece = self._file.read(size)
        if len(piece) < size:
            raise BadRequest("a file in the folder became shorter while it was read: try again", field="path")
        return piece


def _member(file: BinaryIO, name: str) -> tarfile.TarInfo:
    """Return the entry of a file, without what differs between machines."""
    status = os.fstat(file.fileno())
    member = tarfile.TarInfo(name)
    member.size = status.st_size
    member.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    return member


def _too_large(what: str) -> BadRequest:
    return BadRequest(f"the folder has {what}: get its files and folders one by one", field="path")
