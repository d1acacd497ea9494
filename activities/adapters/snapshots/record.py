"""Store the current state of a workspace: scan it, compare it with the recorded state, and send the difference to Git.

A single `git fast-import` process creates the blobs, the trees, the commit and the refs. Commits have no parent, so
that old commits can be deleted. Each commit is based on the tree of the recorded state. Git doesn't write any data
before it reads the final `done` command, so a killed worker doesn't leave a partial snapshot.
"""

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from loom.activities.adapters.snapshots.store import FACTS, FOLDER, LATEST, Base, Store, write_facts
from loom.activities.adapters.snapshots.walk import MOVED_ON, Mark, Scan, mark, scan
from loom.activities.ports import StoreUnavailable
from loom.activities.toolbox.workspace import confined_open as beneath

ROOM: Final = 200 * 2**20
"""Number of bytes to keep free on the store's disk, because Loom's own servers may also write to it."""
_IMPORT: Final = ("-c", "core.fsync=none", "fast-import", "--quiet", "--done", "--force", "--depth=0")
"""Arguments for Git. With these arguments, Git doesn't flush data to the disk, because flushing can take half a second.
After a power failure, the latest snapshots may be missing.
"""
_INTO_A_PACK: Final = ("-c", "fastimport.unpackLimit=1")
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """The name and reason of a snapshot."""

    ref: str = LATEST
    said: str
    """The commit message. It must be a single line."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A state that has been stored."""

    id: str
    files: Mapping[str, Mark]
    """The marks of the files when they were scanned."""


def record(store: Store, lock: int, workspace: Path, label: Label, *, hidden: Path, settled: float) -> Recorded:
    """Store the current state of the workspace, without the `hidden` folder."""
    seen, base = scan(workspace, hidden, settled), store.base()
    try:
        done = _Import(workspace=workspace, seen=seen, base=base)
        done.perform(store, lock, label)
    except StoreUnavailable:
        # A crash may have left locks, and a power failure may have left broken objects. Try once more, and write the
        # whole state to a new pack.
        store.mend(lock)
        done = _Import(workspace=workspace, seen=seen, base=Base())
        done.perform(store, lock, label, *_INTO_A_PACK)
    if done.after != base:
        store.keep_base(done.after)
    return Recorded(id=done.id, files=seen.files)


@dataclass(slots=True, kw_only=True)
class _Import:
    """An import with its input. It also records file changes that it detects."""

    workspace: Path
    seen: Scan
    base: Base
    id: str = ""
    after: Base = field(default_factory=Base)
    gone: set[str] = field(default_factory=set)
    """Files that had been deleted or couldn't be read."""
    unsteady: set[str] = field(default_factory=set)
    """Files that changed between scanning and reading. The store contains the content that was read."""
    not_kept: dict[str, str] = field(default_factory=dict)

    def perform(self, store: Store, lock: int, label: Label, *options: str) -> None:
        """Send the input to Git and read the output. Raises StoreUnavailable if Git fails."""
        changed = {path: marks for path, marks in self.seen.files.items() if self.base.marks.get(path) != marks}
        _check_room(store, sum(marks[1] for marks in changed.values()))
        with store.running(*options, *_IMPORT, lock=lock) as process:
            try:
                with suppress(BrokenPipeError):  # Git has failed, and its error message is read later
                    self._feed(_pipe(process.stdin), label, changed)
                out, err = process.communicate()
            except BaseException:
                process.kill()
                raise
        answers = out.decode("ascii", "replace").splitlines()
        if process.returncode or len(answers) != 2:
            raise store.failure("fast-import", err)
        self.id, tree = answers
        self.after = Base(tree=tree.split()[2] if tree.startswith("040000 ") else None, marks=self._marks())

    def _marks(self) -> dict[str, Mark]:
        """Return the marks to compare with the next scan. A file whose changes might not be detected has no mark."""
        doubted = self.unsteady | self.seen.fresh
        return {path: () if path in doubted else m for path, m in self.seen.files.items() if path not in self.gone}

    def _feed(self, pipe: IO[bytes], label: Label, changed: Mapping[str, Mark]) -> None:
        head = f"commit {label.ref}\nmark :1\ncommitter Loom <loom> {int(label.at.timestamp())} +0000\n"
        pipe.write(head.encode())
        _write(pipe, label.said.encode())
        if self.base.tree is not None:
            pipe.write(f"M 040000 {self.base.tree} {FOLDER}\n".encode())
        for path in self.base.marks.keys() - self.seen.files.keys():
            pipe.write(b"D %s\n" % _quoted(path))
        for path, marks in changed.items():
            self._feed_file(pipe, path, marks)
        pipe.write(f"M 100644 inline {FACTS}\n".encode())
        not_kept = {**self.seen.facts.not_kept, **self.not_kept}
        _write(pipe, write_facts(replace(self.seen.facts, not_kept=not_kept)))
        pipe.write(f"\nreset {LATEST}\nfrom :1\n\nget-mark :1\nls :1 {FOLDER}\ndone\n".encode())
        pipe.flush()

    def _feed_file(self, pipe: IO[bytes], path: str, marks: Mark) -> None:
        try:
            content = self._read(path, marks)
        except OSError as error:
            self.gone.add(path)
            if error.errno not in MOVED_ON:
                self.not_kept[path] = error.strerror or str(error)
            pipe.write(b"D %s\n" % _quoted(path))
            return
        pipe.write(b"M %s inline %s\n" % (_git_mode(marks[0]), _quoted(path)))
        _write(pipe, content)

    def _read(self, path: str, marks: Mark) -> bytes:
        """Return a link's target, or a file's content up to the size that was scanned."""
        *folders, name = path.split("/")
        with beneath.folder(str(self.workspace), folders) as parent:
            if stat.S_ISLNK(marks[0]):
                return os.fsencode(os.readlink(name, dir_fd=parent))
            opened = os.open(name, _OPEN, dir_fd=parent)
        with os.fdopen(opened, "rb") as file:
            content = file.read(marks[1])
            if mark(os.fstat(opened)) != marks:
                self.unsteady.add(path)
        return content


def _check_room(store: Store, wanted: int) -> None:
    free = shutil.disk_usage(store.path).free
    if free - wanted < ROOM:
        raise OSError(
            f"a snapshot needs up to {wanted // 2**20} MB, but the disk of {store.path} has only {free // 2**20} MB"
            " free: make room there, or set LOOM_HOME to a folder on another disk"
        )


def _git_mode(mode: int) -> bytes:
    if stat.S_ISLNK(mode):
        return b"120000"
    return b"100755" if mode & stat.S_IXUSR else b"100644"


def _quoted(path: str) -> bytes:
    """Return the path in `git fast-import` syntax. The path starts with the tree's folder. The path can contain any
    byte except NUL.
    """
    raw = os.fsencode(f"{FOLDER}/{path}")
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _write(pipe: IO[bytes], content: bytes) -> None:
    pipe.write(b"data %d\n" % len(content))
    pipe.write(content)
    pipe.write(b"\n")


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the program was started without a pipe")
    return pipe
