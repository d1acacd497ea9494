"""Turn an archive into input for `git fast-import`, in a process of its own, with the arguments FORMAT and LIMITS.

Nothing is extracted to a disk. Each file is read as a stream and becomes a blob of a repository, so no name in the
archive ever becomes a path, and no link is followed. What leads out of the folder is refused all the same, because the
repository is checked out later. Headers aren't trusted: bytes are counted as they are read.

The process reads the archive from its standard input, and writes blobs and one commit to its standard output. It writes
`done` only after that, so Git makes no commit if the process fails. Its standard error is one JSON object: `refused` is
why the archive can't be used, and `left_out` names the `.git` folders. Without JSON, the archive isn't the cause.

This file, and what it imports of this package, import only the standard library: the process sees no other packages.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import resource
import signal
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Final, NamedTuple, Protocol

from loom.activities.adapters.git.refused_paths import LINK, LONGEST_PATH, is_refused

MOST_METADATA: Final = 2**20
"""The size in bytes of the longest extended header of a tar archive, which is read as a whole."""
MOST_LEFT_OUT: Final = 20
DEEPEST: Final = 100
"""The most folders in a path."""
LONGEST_NAME: Final = 255
LONGEST_TARGET: Final = 4_000
LONGEST_TOLD: Final = 200
CHUNK: Final = 2**16
GIT: Final = ".git"
FOLDER: Final = "040000"
COMMIT: Final = (
    b"commit refs/loom/pinned\nmark :1\ncommitter Loom <loom@localhost> 0 +0000\ndata 22\nThe archive's content\n\n"
)
"""The head of the commit. It is the same for all archives, so that equal files make equal commits."""
END: Final = b"get-mark :1\ndone\n"
"""What makes Git print the commit, and end."""
_MEMORY: Final = 2**30
_EXTENDED: Final = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read at most so many bytes."""
        ...


_OPENED: Final[dict[str, Callable[[IO[bytes]], Readable]]] = {
    "tar": lambda file: file,
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}


class RefusedArchive(Exception):
    """The archive can't be used. The message says which member is wrong, and what to do."""


class Limits(NamedTuple):
    """How large an archive's content may be, and how long it may take to read it."""

    entries: int
    """The most files and folders."""
    size: int
    """The most bytes of all files, or of an uncompressed tar archive."""
    paths: int
    """The most bytes of all paths."""
    seconds: int


@dataclass(frozen=True, slots=True)
class Member:
    """A file, a link or a folder in an archive."""

    name: str
    mode: str = FOLDER
    """As in a Git tree."""
    content: IO[bytes] | None = None
    size: int = 0
    same_as: str = ""
    """The name of an earlier member with the same content: a hard link."""


class Counted(io.RawIOBase):
    """A stream of which only so many bytes are read."""

    def __init__(self, stream: Readable, limit: int) -> None:
        super().__init__()
        self._stream = stream
        self._left = self._limit = limit

    def read(self, size: int = -1, /) -> bytes:
        """Read at most so many bytes. Raises RefusedArchive if the stream has more than its limit."""
        data = self._stream.read(CHUNK if size < 0 else min(size, CHUNK))
        self._left -= len(data)
        if self._left < 0:
            raise _too_large(self._limit)
        return data


class CheckedTarInfo(tarfile.TarInfo):
    """A member of a tar archive. Refuses what would make `tarfile` read a lot into memory, or stop silently."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "CheckedTarInfo":
        """See the base class."""
        is_end = len(buf) == tarfile.BLOCKSIZE and not any(buf)
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError:
            if is_end:
                raise
            raise RefusedArchive(
                "the archive is damaged, cut off, or not a tar archive: pack the files again"
            ) from None
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise RefusedArchive(f"{_told(member.name)} is a sparse file: pack the files without `--sparse`")
        if member.size < 0 or (member.type in _EXTENDED and member.size > MOST_METADATA):
            raise RefusedArchive(f"{_told(member.name)} has a header that is too large: pack the files again")
        return member


def tar_members(content: Readable, limits: Limits) -> Iterator[Member]:
    """Yield the files and links of an uncompressed tar archive."""
    counted = Counted(content, limits.size)
    with tarfile.open(
        fileobj=counted,
        mode="r|",
        tarinfo=CheckedTarInfo,
        encoding="utf-8",
        errors="surrogateescape",
    ) as archive:
        for member in archive:
            if member.size < 0:  # in an extended header
                raise RefusedArchive(f"{_told(member.name)} has a negative size: pack the files again")
            if member.isdir() or _is_of_git(member.name):
                yield Member(member.name)
            elif member.issym():
                yield _link(member.name, member.linkname)
            elif member.islnk():
                yield Member(member.name, "", same_as=member.linkname)
            elif member.issparse() or "GNU.sparse.major" in member.pax_headers:
                raise RefusedArchive(f"{_told(member.name)} is a sparse file: pack the files without `--sparse`")
            elif member.isreg():
                yield Member(member.name, _mode(member.mode), archive.extractfile(member), member.size)
            else:
                raise _not_a_file(member.name)
        _read_padding(archive.fileobj)


def _read_padding(rest: Readable) -> None:
    """Read what follows the end of a tar archive, because the checksum of a compressed one comes last. Raises
    RefusedArchive if there is anything but zeros.
    """
    while data := rest.read(CHUNK):
        if data.strip(b"\0"):
            raise RefusedArchive("the archive has data after its end: pack all files into one archive")


def zip_members(content: IO[bytes], limits: Limits) -> Iterator[Member]:
    """Yield the files and links of a zip archive."""
    left = limits.size
    with zipfile.ZipFile(content) as archive:
        for member in archive.infolist():
            name, mode = _zip_name(member), member.external_attr >> 16
            if name.endswith("/") or stat.S_ISDIR(mode) or _is_of_git(name):
                yield Member(name)
                continue
            if member.flag_bits & 0x1:
                raise RefusedArchive(f"{_told(name)} is encrypted: pack the files without a password")
            left -= member.file_size  # `zipfile` doesn't read more
            if left < 0:
                raise _too_large(limits.size)
            try:
                opened = archive.open(member)
            except NotImplementedError:
                raise RefusedArchive(f"{_told(name)} has an unsupported compression: pack it with `deflate`") from None
            with opened as file:
                if stat.S_ISLNK(mode):
                    yield _link(name, _target(file, name))
                elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                    yield Member(name, _mode(mode), file, member.file_size)
                else:
                    raise _not_a_file(name)


def _zip_name(member: zipfile.ZipInfo) -> str:
    """Return the name, which is UTF-8 in most archives, even if they don't say so."""
    name = member.orig_filename if "\0" in member.orig_filename else member.filename
    if not member.flag_bits & 0x800:
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeEncodeError:
            pass  # the archive has the name in UTF-8, too
        except UnicodeDecodeError:
            raise _not_utf8(name) from None
    if "\\" in name:
        raise RefusedArchive(f"{_told(name)} has a backslash in its name: pack the files with a tool that writes `/`")
    return name


def _target(file: IO[bytes], name: str) -> str:
    target = file.read(LONGEST_TARGET + 1)
    try:
        return target.decode("utf-8")
    except UnicodeDecodeError:
        raise _not_utf8(name) from None


def _link(name: str, target: str) -> Member:
    """Return a symbolic link. Raises RefusedArchive if it leads out of the folder.

    `..` is allowed only at the beginning, because another link may be anything but the folder that its path suggests.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
    depth = sum(step not in ("", ".") for step in name.split("/")) - 1
    if target.startswith("/") or ups > depth or ".." in steps[ups:] or not target or "\0" in target:
        raise RefusedArchive(
            f"{_told(name)} is a link to {_told(target)}, which may lead out of the folder: leave it out, or replace it"
            " by a file"
        )
    content = _bytes(target, name)
    if len(content) > LONGEST_TARGET:
        raise RefusedArchive(f"{_told(name)} is a link to a path that is too long: leave it out")
    return Member(name, LINK, io.BytesIO(content), len(content))


class Import:
    """Writes what Git imports. The commit comes after all blobs."""

    def __init__(self, out: IO[bytes], limits: Limits) -> None:
        self._out = out
        self._limits = limits
        self._files: dict[str, tuple[str, int]] = {}
        self._folders: set[str] = set()
        self._left_out: dict[str, None] = {}
        self._paths = 0
        """The size in bytes of all paths."""

    def add(self, member: Member) -> None:
        """Write the content of a file. Raises RefusedArchive if it has no place in the folder."""
        steps = self._steps(member.name)
        if GIT in steps:
            self._left_out["/".join(steps[: steps.index(GIT) + 1])] = None
            return
        if member.mode == FOLDER or not steps:
            self._add_folders(steps)
            return
        self._add_folders(steps[:-1])
        path = "/".join(steps)
        if path in self._files:
            raise RefusedArchive(f"{_told(path)} is in the archive twice: pack the files again, without appending")
        if path in self._folders:
            raise _both(path)
        if is_refused(path.encode(), member.mode):
            raise RefusedArchive(f"{_told(path)} has a name that Git doesn't check out: rename it")
        self._files[path] = self._same(member) if member.content is None else self._blob(member, member.content)
        self._count(path)

    def _steps(self, name: str) -> list[str]:
        """Return the folders and the name in a path. Raises RefusedArchive if they can't be those of a file here."""
        steps = [step for step in name.split("/") if step not in ("", ".")]
        if name.startswith("/") or ".." in steps:
            raise RefusedArchive(
                f"{_told(name)} would be outside the folder: pack the files with paths below one folder"
            )
        if "\0" in name:
            raise RefusedArchive(f"{_told(name)} has a NUL in its name: rename the file")
        if len(_bytes(name, name)) > LONGEST_PATH or any(len(step.encode()) > LONGEST_NAME for step in steps):
            raise RefusedArchive(
                f"{_told(name)} has a name that is too long: a path has at most {LONGEST_PATH:,} bytes, and a name"
                f" {LONGEST_NAME}"
            )
        if len(steps) - 1 > DEEPEST:
            raise RefusedArchive(f"{_told(name)} is in more than {DEEPEST} folders: pack the files with shorter paths")
        return steps

    @property
    def left_out(self) -> list[str]:
        """The `.git` folders, for people."""
        shown = [_shortened(folder) for folder in list(self._left_out)[:MOST_LEFT_OUT]]
        more = len(self._left_out) - len(shown)
        return [*shown, f"and {more:,} more"] if more else shown

    def _add_folders(self, steps: list[str]) -> None:
        for length in range(len(steps), 0, -1):
            folder = "/".join(steps[:length])
            if folder in self._folders:
                break
            if folder in self._files:
                raise _both(folder)
            self._folders.add(folder)
            self._count(folder)

    def _count(self, path: str) -> None:
        """Count a new file or folder. Raises RefusedArchive if there are too many, or their paths are too long."""
        _refuse_many(len(self._files) + len(self._folders) - 1, self._limits)
        self._paths += len(path.encode())
        if self._paths > self._limits.paths:
            raise RefusedArchive(
                f"the paths in the archive have more than {self._limits.paths:,} bytes together: shorten them, or leave"
                " files out"
            )

    def _same(self, member: Member) -> tuple[str, int]:
        same = self._files.get("/".join(step for step in member.same_as.split("/") if step not in ("", ".")))
        if same is None:
            raise RefusedArchive(
                f"{_told(member.name)} is a hard link to {_told(member.same_as)}, which isn't earlier in the archive:"
                " pack the files with `--hard-dereference`"
            )
        if same[0] == LINK:  # from another folder, it would lead elsewhere
            raise RefusedArchive(
                f"{_told(member.name)} is a hard link to the link {_told(member.same_as)}: pack the files with"
                " `--hard-dereference`"
            )
        return same

    def _blob(self, member: Member, content: IO[bytes]) -> tuple[str, int]:
        mark = len(self._files) + 2
        self._out.write(b"blob\nmark :%d\ndata %d\n" % (mark, member.size))
        left = member.size
        while left and (data := content.read(min(left, CHUNK))):
            self._out.write(data)
            left -= len(data)
        if left or content.read(1):
            raise RefusedArchive(f"{_told(member.name)} is damaged or cut off: pack the files again")
        self._out.write(b"\n")
        return member.mode, mark

    def finish(self) -> None:
        """Write the commit."""
        if not self._files:
            raise RefusedArchive("the archive has no files: pack at least one")
        self._out.write(COMMIT)
        for path, (mode, mark) in self._files.items():
            self._out.write(b"M %s :%d %s\n" % (mode.encode(), mark, _quoted(path)))
        self._out.write(b"\n" + END)
        self._out.flush()


def convert(content: IO[bytes], kind: str, limits: Limits, out: IO[bytes]) -> list[str]:
    """Write the input for Git, and return the `.git` folders that are left out."""
    to = Import(out, limits)
    members = zip_members(content, limits) if kind == "zip" else tar_members(_OPENED[kind](content), limits)
    for number, member in enumerate(members):
        _refuse_many(number, limits)
        to.add(member)
    to.finish()
    return to.left_out


def _is_of_git(name: str) -> bool:
    return GIT in name.split("/")


def _mode(permissions: int) -> str:
    return "100755" if permissions & stat.S_IXUSR else "100644"


def _quoted(path: str) -> bytes:
    return b'"' + path.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _bytes(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise _not_utf8(name) from None


def _told(name: str) -> str:
    return repr(_shortened(name))


def _shortened(text: str) -> str:
    shown = text if len(text) <= LONGEST_TOLD else f"{text[:LONGEST_TOLD]}…"
    return shown.encode("utf-8", "backslashreplace").decode()


def _refuse_many(number: int, limits: Limits) -> None:
    if number >= limits.entries:
        raise RefusedArchive(f"the archive has more than {limits.entries:,} files and folders: leave some out")


def _too_large(limit: int) -> RefusedArchive:
    return RefusedArchive(f"the archive's content has more than {limit / 2**30:g} GB: leave files out")


def _not_a_file(name: str) -> RefusedArchive:
    return RefusedArchive(f"{_told(name)} isn't a file, a folder or a link: leave it out")


def _not_utf8(name: str) -> RefusedArchive:
    return RefusedArchive(f"{_told(name)} has a name that isn't UTF-8: rename the file, or pack it in a UTF-8 locale")


def _both(path: str) -> RefusedArchive:
    return RefusedArchive(f"{_told(path)} is both a file and a folder in the archive: pack the files again")


def _limit_this_process(seconds: int) -> None:
    signal.alarm(seconds)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def main() -> None:
    """Convert the archive on standard input. Whatever it makes the libraries raise is a reason to refuse it."""
    limits = Limits(*json.loads(sys.argv[2]))
    _limit_this_process(limits.seconds)
    try:
        said: dict[str, object] = {"left_out": convert(sys.stdin.buffer, sys.argv[1], limits, sys.stdout.buffer)}
    except RefusedArchive as error:
        said = {"refused": str(error)}
    except BrokenPipeError:  # Git has failed, and says why
        said = {"left_out": []}
    except MemoryError:
        said = {"refused": "the archive needs too much memory to unpack: leave files out"}
    except Exception as error:  # noqa: BLE001
        why = _shortened(str(error)) or type(error).__name__
        said = {"refused": f"the archive can't be read: pack the files again ({why})"}
    sys.stderr.write(json.dumps(said))
    sys.stderr.flush()
    os._exit("refused" in said)  # what standard output has left belongs to a commit that isn't made
