"""The change in one clone: how its files differ from the commit.

The files are read as in a snapshot (`snapshots.record`), one folder at a time and without following links, and Git gets
only their content.
"""

import codecs
import errno
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from loom.activities.adapters.git.bare_repository import BareRepository, entries_of
from loom.activities.adapters.git.deletion import delete
from loom.activities.adapters.git.refused_paths import is_refused
from loom.activities.adapters.snapshots.record import Label, record
from loom.activities.adapters.snapshots.store import Blobs, TookTooLong, end, keep
from loom.activities.adapters.snapshots.walk import MOST, TooManyFiles
from loom.activities.ports import LARGEST_PATCH, CloneChange, StoreUnavailable
from loom.activities.toolbox.workspace.paths import HIDDEN, REGENERABLE
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import COMMIT, Checkout
from loom.domain.permissions.obeyed import is_continuous_integration

_log = structlog.get_logger("loom.clones")

MOST_IGNORING: Final = 1_000
"""The most `.gitignore` files that apply to a change."""
LARGEST_IGNORING: Final = 2**20
"""The size in bytes of all `.gitignore` files that apply to a change."""
IGNORING_SECONDS: Final = 30.0
"""Seconds that Git may take to find out which files are ignored."""
_SIZE: Final = "size"
_MAY_GROW: Final = 256 * 2**20
_SETTLED: Final = 2.0
_BLANK_FOLDER: Final = b" /"
"""Git can't apply all of its own patches for files in folders whose names end with a blank."""
_AS_BINARY: Final = b"* -diff\n"
_SUBMODULE: Final = "160000"


class Changes:
    """Computes the change in a clone."""

    def __init__(self, repository: BareRepository, folder: Path, home: Path) -> None:
        """`home` has Loom's own state, which isn't part of a change."""
        self._repository = repository
        self._folder = folder
        self._home = home

    def of(self, checkout: Checkout, unless: str) -> CloneChange | None:
        """Return the change, or None if the files are those of the tree `unless`.

        Raises BadRequest if trying again won't help.
        """
        try:
            self._prune_if_due()
            return self._changed(checkout, unless)
        except TooManyFiles:
            raise BadRequest(
                f"the clone {self._folder} has more than {MOST:,} files and folders, not counting those that a command"
                " can create again",
                field="workspace",
            ) from None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise BadRequest(f"the clone {self._folder} has a path that is too long", field="workspace") from None

    def _prune_if_due(self) -> None:
        """Delete what earlier changes have left in the bare repository, if it has grown. What its refs need stays."""
        path = self._repository.path / _SIZE
        size = self._size()
        if not path.exists():
            keep(path, b"%d" % size)
        elif size > 2 * int(path.read_bytes()) + _MAY_GROW:
            try:
                self._repository.git("repack", "-a", "-d", "-q", "--window=0")
                self._repository.git("prune", "--expire=now")
            except StoreUnavailable as error:
                _log.warning("clone_not_pruned", folder=str(self._folder), error=str(error))
            keep(path, b"%d" % self._size())  # even if that failed, so that not each call tries it

    def _size(self) -> int:
        """Return the size of all objects in bytes."""
        counted = dict(line.split(": ") for line in self._repository.git("count-objects", "-v").decode().splitlines())
        return 1024 * (int(counted["size"]) + int(counted["size-pack"]))

    def _changed(self, checkout: Checkout, unless: str) -> CloneChange | None:
        commit = checkout.commit
        label = Label(said="{}", at=datetime.now(UTC))
        recorded = record(
            self._repository.store, self._repository.lock, self._folder, label, hidden=self._home, settled=_SETTLED
        )
        tree, refused = self._tree(commit, recorded.id)
        if tree == unless:
            return None
        names, patch = self._names(commit, tree), self._patch(commit, tree)
        broken: list[bytes] = []
        if patch and not self._makes(tree, commit, patch):
            broken = [name for name in names if _BLANK_FOLDER in name]
            tree = self._without(tree, commit, broken)
            if tree == unless:
                return None
            names, patch = self._names(commit, tree), self._patch(commit, tree)
            if patch and not self._makes(tree, commit, patch):
                raise BadRequest(f"Git can't make a patch of the files in {self._folder}", field="workspace")
        return CloneChange(
            patch=patch,
            files=len(names),
            tree=tree,
            ci_files=self._ci_files(checkout, tree, names),
            left_out=tuple(os.fsdecode(path) for path in sorted((*refused, *broken))),
        )

    def _ci_files(self, checkout: Checkout, tree: str, changed: Sequence[bytes]) -> tuple[str, ...]:
        """Return the changed files that a host runs. If the commit may be on no branch, all files count as changed."""
        is_anyones = COMMIT.fullmatch(checkout.revision) and not self._repository.is_on_branch(checkout.commit)
        names = set(changed)
        if changed and is_anyones:
            names.update(
                path for path, _ in entries_of(self._repository.git("ls-tree", "-r", "-z", "--full-tree", tree))
            )
        return tuple(filter(is_continuous_integration, map(os.fsdecode, sorted(names))))

    def _names(self, commit: str, tree: str) -> list[bytes]:
        """Return which files differ."""
        listed = self._repository.git("diff-tree", "-r", "-z", "--no-renames", "--name-only", commit, tree)
        return list(filter(None, listed.split(b"\0")))

    def _makes(self, tree: str, commit: str, patch: bytes) -> bool:
        """Whether the commit becomes this tree if Git applies the patch."""
        try:
            return self._repository.patched(commit, patch) == tree
        except BadRequest:
            return False

    def _without(self, tree: str, commit: str, paths: Sequence[bytes]) -> str:
        """Return the tree, in which these paths are as in the commit."""
        pinned = dict(entries_of(self._repository.git("ls-tree", "-r", "-z", "--full-tree", commit)))
        none = f"0 {'0' * len(commit)}"
        index = {"GIT_INDEX_FILE": str(self._repository.path / "change-index")}
        self._repository.git("read-tree", tree, variables=index)
        feed = b"".join(b"%s\t%s\0" % (pinned.get(path, none).encode(), path) for path in paths)
        self._repository.git("update-index", "-z", "--index-info", feed=feed, variables=index)
        return self._repository.git("write-tree", "--missing-ok", variables=index).decode().strip()

    def _tree(self, commit: str, recorded: str) -> tuple[str, Set[bytes]]:
        """Return the tree of the clone's files, without those that Git ignores, and the files whose names Git refuses.
        For what a snapshot leaves out, such as large files, the tree keeps the commit's version.
        """
        pinned = dict(entries_of(self._repository.git("ls-tree", "-r", "-z", "--full-tree", commit)))
        kept = self._repository.store.kept(recorded)
        found = {os.fsencode(path): " ".join(entry) for path, entry in kept.files.items()}
        refused = {path for path, entry in found.items() if is_refused(path, entry.split(" ")[0])}
        seen = {path: entry for path, entry in found.items() if path not in refused}
        back = self._left_out(pinned, seen, kept.facts.not_kept)
        gone = set(self._ignored(seen.keys() - pinned.keys(), {**back, **seen}))
        entries = {**back, **{path: entry for path, entry in seen.items() if path not in gone}}
        index = {"GIT_INDEX_FILE": str(self._repository.path / "change-index")}
        self._repository.git("read-tree", "--empty", variables=index)
        feed = b"".join(b"%s\t%s\0" % (entry.encode(), path) for path, entry in entries.items())
        self._repository.git("update-index", "-z", "--index-info", feed=feed, variables=index)
        tree = self._repository.git("write-tree", "--missing-ok", variables=index).decode().strip()
        return tree, refused

    @staticmethod
    def _left_out(
        pinned: Mapping[bytes, str], seen: Mapping[bytes, str], not_kept: Mapping[str, str]
    ) -> dict[bytes, str]:
        """Return the commit's files that a snapshot leaves out, unless something else is in their place."""
        folders = {folder for path in seen for folder in _above(path)}
        return {
            path: entry
            for path, entry in pinned.items()
            if path not in seen
            and path not in folders
            and seen.keys().isdisjoint(_above(path))
            and _is_left_out(path, entry, not_kept)
        }

    def _ignored(self, paths: Set[bytes], tree: Mapping[bytes, str]) -> list[bytes]:
        """Return which paths the `.gitignore` files in the tree exclude. Git reads copies of these files, because the
        agent may have put something else in the clone meanwhile.
        """
        if not paths:
            return []
        asked = b"".join(b"./%s\0" % path for path in sorted(paths))  # a path that begins with a colon is a pattern
        copies = self._repository.path / "ignore"
        delete(copies)
        copies.mkdir()
        try:
            self._copy_ignoring(tree, copies)
            at = {"GIT_WORK_TREE": str(copies), "GIT_INDEX_FILE": os.devnull}
            words = ("check-ignore", "--no-index", "--stdin", "-z")
            answer = self._repository.git(*words, feed=asked, variables=at, fails_with=(1,), seconds=IGNORING_SECONDS)
            return [path.removeprefix(b"./") for path in answer.split(b"\0") if path]
        except TookTooLong:
            raise BadRequest(
                f"Git needs more than {IGNORING_SECONDS:.0f} s to apply the .gitignore files in {self._folder}:"
                " use fewer files or simpler patterns",
                field="workspace",
            ) from None
        finally:
            delete(copies)

    def _copy_ignoring(self, tree: Mapping[bytes, str], copies: Path) -> None:
        found = sorted(
            (path.count(b"/"), path, entry.split(" ")[1])
            for path, entry in tree.items()
            if path.rpartition(b"/")[2] == b".gitignore" and entry.startswith("100")
        )
        left = LARGEST_IGNORING
        with Blobs(self._repository.store) as blobs:
            for _, path, oid in found[:MOST_IGNORING]:
                content = blobs.read(oid)
                if len(content) <= left:
                    copy = copies / os.fsdecode(path)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(content)
                    left -= len(content)

    def _patch(self, commit: str, tree: str) -> bytes | None:
        """Return the difference as UTF-8 text, or None if it is too large. Files in another encoding appear as
        binary.
        """
        path = self._repository.path / "patch"
        try:
            if self._write_patch(path, commit, tree):
                return path.read_bytes() if path.stat().st_size <= LARGEST_PATCH else None
            attributes = self._repository.path / "info" / "attributes"
            attributes.parent.mkdir(exist_ok=True)
            attributes.write_bytes(_AS_BINARY)
            try:
                self._write_patch(path, commit, tree)
            finally:
                attributes.unlink()
            return path.read_bytes() if path.stat().st_size <= LARGEST_PATCH else None
        finally:
            path.unlink(missing_ok=True)

    def _write_patch(self, path: Path, commit: str, tree: str) -> bool:
        """Write the difference to a file, until that is too large. Return whether it is UTF-8 text."""
        words = (
            *("-c", "core.quotePath=true", "diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames"),
            *("--no-ext-diff", "--no-textconv", commit, tree),
        )
        decoder = codecs.getincrementaldecoder("utf-8")()
        with self._repository.running(*words) as process, path.open("wb") as file:
            while process.stdout is not None and (read := process.stdout.read(2**16)):
                try:
                    decoder.decode(read)
                except UnicodeDecodeError:
                    end(process)
                    return False
                file.write(read)
                if file.tell() > LARGEST_PATCH:
                    end(process)
                    return True
            said = process.stderr.read() if process.stderr else b""
        if process.returncode:
            raise self._repository.failure(words, said)
        return True


def _above(path: bytes) -> Iterator[bytes]:
    """Yield the folders above this path."""
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)


def _is_left_out(path: bytes, entry: str, not_kept: Mapping[str, str]) -> bool:
    """Whether a snapshot leaves the path out, so that its absence doesn't mean that it was deleted."""
    parts = os.fsdecode(path).split("/")
    above = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
    return (
        entry.startswith(_SUBMODULE)
        or not {*REGENERABLE, HIDDEN}.isdisjoint(parts[:-1])
        or any(each in not_kept for each in above)
    )
