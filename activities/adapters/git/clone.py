"""One clone of a run: it is built, its change is computed, and its change is pushed.

Once an agent has worked in a clone, Git doesn't read anything in it: settings in its `.git` could name programs, and a
file could be a pipe. The files are read as in a snapshot (`snapshots.record`), one folder at a time and without
following links, and Git gets only their content. Attributes and filters therefore don't apply: files have the same
bytes as in the commit. All files that Git itself writes or reads are in the bare repository's folder.
"""

import asyncio
import codecs
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import IO, Final, TypeVar
from uuid import uuid4

import structlog

from loom.activities.adapters.git.deletion import delete
from loom.activities.adapters.git.remotes import FRUGAL, LARGEST, RemoteGit, limit_memory
from loom.activities.adapters.snapshots.record import Label, record
from loom.activities.adapters.snapshots.store import NO_VARIABLES, Blobs, Store, TookTooLong, command, end, keep
from loom.activities.adapters.snapshots.walk import MOST, TooManyFiles
from loom.activities.ports import LARGEST_PATCH, CloneChange, CloneState, StoreUnavailable
from loom.activities.toolbox.workspace.paths import HIDDEN, REGENERABLE
from loom.domain.core.errors import BadRequest, RefusedError
from loom.domain.core.repositories import COMMIT, Checkout, GitWorkspace, problem_of_branch
from loom.domain.permissions.obeyed import is_continuous_integration

_log = structlog.get_logger("loom.clones")

HISTORY: Final = 50
"""The number of commits in a clone, including the pinned one."""
MOST_IGNORING: Final = 1_000
"""The most `.gitignore` files that apply to a change."""
LARGEST_IGNORING: Final = 2**20
"""The size in bytes of all `.gitignore` files that apply to a change."""
IGNORING_SECONDS: Final = 30.0
"""Seconds that Git may take to find out which files are ignored."""
LARGEST_OBJECT: Final = 16 * 2**20
"""The size in bytes of the largest commit, and of the largest list of the files in one."""
LONGEST_PATH: Final = 3_500
"""The size in bytes of the longest path in a clone. The system allows 4,096 with the clone's folder."""
_STATE: Final = "clone.json"
_INCOMING: Final = "incoming-"
_SHALLOW: Final = "shallow"
_PACKS: Final = "objects/pack"
_HEAD: Final = "HEAD"
_PINNED: Final = "refs/loom/pinned"
_FILES: Final = "refs/loom/files"
_ON_A_BRANCH: Final = "on-a-branch-"
_SIZE: Final = "size"
_MAY_GROW: Final = 256 * 2**20
_SETTLED: Final = 2.0
_MOST_TOLD: Final = 200
_BLANK_FOLDER: Final = b" /"
"""Git can't apply all of its own patches for files in folders whose names end with a blank."""
_AS_THEY_ARE: Final = b"* -text -eol -ident -filter -working-tree-encoding\n"
"""The attributes of a clone: Git writes and reads all files as they are."""
_AS_BINARY: Final = b"* -diff\n"
_FRUGAL: Final = tuple(word for setting in FRUGAL for word in ("-c", setting))
_SUBMODULE: Final = "160000"
_LINK: Final = "120000"
_STRICT: Final = (
    *("-c", "core.protectNTFS=true", "-c", "core.protectHFS=true"),
    *("-c", "core.hooksPath=/dev/null", "-c", "submodule.recurse=false"),
)
_IGNORED_BY_HFS: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_REFUSED_NAME: Final = re.compile(r"(\.git|git~\d+)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL)
_REFUSED_LINK: Final = re.compile(
    r"(\.git|git~\d+|\.gitmodules|gitmod~\d|g?i?7?e?b?a?~\d+)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL
)
"""The names of files, and of links, that Git doesn't check out, because some file systems take them for those of its
own files. A few more names match, too.
"""
_THREADS: Final = ThreadPoolExecutor(max_workers=4, thread_name_prefix="loom-clone")
"""The threads of all clones. Work on a clone can take minutes, and the worker's other threads have to stay free."""
_REFUSALS: Final = (1, 128)
_IS_FULL: Final = re.compile(rb"unable to (?:write|create)|no space", re.IGNORECASE)
_AUTHOR: Final = {"NAME": "Loom", "EMAIL": "loom@localhost"}

T = TypeVar("T")


async def run_to_completion(work: Callable[..., T], *given: object) -> T:
    """Do blocking work in a thread. A cancellation is delivered when the work has ended, because others may use the
    clone from then on.
    """
    working = asyncio.get_running_loop().run_in_executor(_THREADS, work, *given)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        working.exception()  # it has been read
        raise cancelled
    return working.result()


class RunClone:
    """One clone, while this process holds its lock."""

    def __init__(self, folder: Path, store: Store, lock: int, home: Path, remote: RemoteGit) -> None:
        self._folder = folder
        self._store = store
        self._lock = lock
        self._home = home
        self._remote = remote

    @property
    def state(self) -> CloneState | None:
        """See the port."""
        try:
            known = CloneState(**json.loads((self._store.path / _STATE).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return known if self._folder.is_dir() else None

    async def keep(self, state: CloneState) -> None:
        """See the port."""
        await run_to_completion(keep, self._store.path / _STATE, json.dumps(asdict(state)).encode())

    async def pin(self, workspace: GitWorkspace) -> Checkout:
        """See the port."""
        await run_to_completion(self._store.prepare, self._folder, self._lock)
        url, revision = workspace.git, workspace.revision
        if COMMIT.fullmatch(revision):
            commit = await self._fetch_commit(url, revision)
            await self._look_for_branch(url, commit)
            return self._checkout(url, commit, revision)
        ref, name = await self._found(workspace)
        return self._checkout(url, await self._fetch(url, ref), name)

    def _checkout(self, url: str, commit: str, revision: str) -> Checkout:
        return Checkout(url=url, commit=commit, revision=revision, folder=str(self._folder))

    async def _found(self, workspace: GitWorkspace) -> tuple[str, str]:
        """Return the full name of the revision, and the name to show. A branch goes before a tag."""
        url, name = workspace.git, workspace.revision
        wanted = (f"refs/heads/{name}", f"refs/tags/{name}") if name else (_HEAD,)
        known = _listed(await self._remote.refs(self._store.path, url, *wanted))
        for ref in wanted:
            if ref in known:
                return ref, name or _branch_of_head(known)
        what = f"branch or tag {name!r}" if name else "commits"
        hint = ": a commit needs its full id" if name else ""
        raise BadRequest(f"{url} has no {what}{hint}", field="workspace.revision" if name else "workspace.git")

    async def _fetch_commit(self, url: str, commit: str) -> str:
        try:
            return await self._fetch(url, commit)
        except BadRequest as error:
            raise BadRequest(
                f"{url} doesn't provide the commit {commit}: {error.message}", field="workspace.revision"
            ) from None

    async def _look_for_branch(self, url: str, commit: str) -> None:
        """Record if the commit is the latest one of a branch or tag. Others can be anyone's: some servers also have the
        commits of forks.
        """
        try:
            known = _listed(await self._remote.refs(self._store.path, url, "refs/heads/*", "refs/tags/*"))
        except BadRequest:  # too many to read
            return
        if commit in known.values():
            (self._store.path / f"{_ON_A_BRANCH}{commit}").touch()

    async def _fetch(self, url: str, ref: str) -> str:
        """Fetch a ref with some history, and return its commit.

        If this process is killed, Git may go on for a while. It therefore writes a repository that nobody else uses.
        """
        for left in self._store.path.glob(f"{_INCOMING}*"):
            await run_to_completion(_discard, left)
        incoming = self._store.path / f"{_INCOMING}{uuid4().hex}"
        at = {"GIT_DIR": str(incoming)}
        try:
            await run_to_completion(partial(self._git, "init", "--quiet", "--bare", "--template=", variables=at))
            await self._remote.fetch(incoming, url, f"+{ref}:{_PINNED}", HISTORY)
            return await run_to_completion(self._take, incoming, url, ref)
        finally:
            await run_to_completion(_discard, incoming)

    def _take(self, incoming: Path, url: str, ref: str) -> str:
        """Move what was fetched to the bare repository, and return the commit."""
        at = {"GIT_DIR": str(incoming)}
        words = ("rev-parse", "--quiet", "--verify", f"{_PINNED}^{{commit}}")
        commit = self._git(*words, variables=at, fails_with=(1, 128)).decode().strip()
        if not COMMIT.fullmatch(commit):
            raise BadRequest(f"{ref} is not a commit in {url}", field="workspace.revision")
        asked = f"{commit}\n{commit}^{{tree}}\n".encode()
        sizes = self._git("cat-file", "--batch-check=%(objectsize)", feed=asked, variables=at).split()
        if any(size.isdigit() and int(size) > LARGEST_OBJECT for size in sizes):
            raise BadRequest(
                f"the commit {commit} of {url} is too large: its message, or the list of its files, has more than"
                f" {LARGEST_OBJECT // 2**20} MB",
                field="workspace.git",
            )
        # Git uses a pack as soon as its index is there, and then has to know where the history ends.
        shallow = {line for each in (self._store.path, incoming) for line in _lines(each / _SHALLOW)}
        if shallow:
            keep(self._store.path / _SHALLOW, b"".join(b"%s\n" % line for line in sorted(shallow)))
        packs = sorted((incoming / _PACKS).iterdir(), key=lambda path: (path.suffix == ".idx", path.name))
        (self._store.path / _PACKS).mkdir(exist_ok=True)
        for pack in packs:
            pack.replace(self._store.path / _PACKS / pack.name)
        self._git("update-ref", _PINNED, commit)
        return commit

    async def build(self, checkout: Checkout, patch: bytes = b"", version: int = 0) -> None:
        """See the port."""
        await run_to_completion(self._store.prepare, self._folder, self._lock)
        if not await run_to_completion(self._has, checkout.commit):
            await self._fetch_commit(checkout.url, checkout.commit)
            if COMMIT.fullmatch(checkout.revision):
                await self._look_for_branch(checkout.url, checkout.commit)
        tree = await run_to_completion(self._build, checkout, patch)
        await self.keep(
            CloneState(
                commit=checkout.commit, version=version, tree=tree, is_restored=version > 0, generation=uuid4().hex
            )
        )

    def _has(self, commit: str) -> bool:
        answer = self._git("cat-file", "--batch-check=%(objecttype)", feed=f"{commit}\n".encode())
        return answer.strip() == b"commit"

    def _build(self, checkout: Checkout, patch: bytes) -> str:
        """Make the clone under another name, so that a crash leaves none that is incomplete. Return its tree."""
        self._refuse_unusual(checkout)
        (self._store.path / _STATE).unlink(missing_ok=True)
        fresh = self._folder.with_name(f"{self._folder.name}.new")
        delete(fresh)
        self._git("update-ref", _PINNED, checkout.commit)
        self._git("update-ref", _FILES, self._with_patch(checkout.commit, patch) if patch else checkout.commit)
        self._clone(fresh, checkout)
        old = self._folder.with_name(f"{self._folder.name}.old-{uuid4().hex}")
        if os.path.lexists(self._folder):
            self._folder.rename(old)
        fresh.rename(self._folder)
        _discard(old)
        return self._git("rev-parse", f"{_FILES}^{{tree}}").decode().strip()

    def _refuse_unusual(self, checkout: Checkout) -> None:
        """Raise BadRequest if the commit has more than a clone may contain, or names that lead elsewhere."""
        try:
            self._refuse_unusual_entries(checkout)
        except TookTooLong as error:
            raise BadRequest(
                f"the commit {checkout.commit} of {checkout.url} can't be cloned: {error}", field="workspace.git"
            ) from None

    def _refuse_unusual_entries(self, checkout: Checkout) -> None:
        entries = size = 0
        with self._running("ls-tree", "-r", "-t", "-l", "-z", "--full-tree", checkout.commit) as process:
            for entry in _records(process.stdout):
                head, _, path = entry.partition(b"\t")
                mode, *_, length = head.decode("ascii").split()
                entries += 1
                size += int(length) if length.isdecimal() else 0
                if entries > MOST or size > LARGEST:
                    raise BadRequest(
                        f"the commit {checkout.commit} of {checkout.url} is too large: a clone has at most {MOST:,}"
                        f" files and folders, and {LARGEST / 2**30:g} GB",
                        field="workspace.git",
                    )
                if _is_refused(path, mode):
                    raise BadRequest(
                        f"the commit {checkout.commit} of {checkout.url} has the path"
                        f" {os.fsdecode(path[:_MOST_TOLD])!r}, which Git doesn't check out: rename it in the"
                        " repository",
                        field="workspace.git",
                    )
            said = process.stderr.read() if process.stderr else b""
        if process.returncode:
            raise self._failure(("ls-tree",), said)

    def _with_patch(self, commit: str, patch: bytes) -> str:
        tree = self._patched(commit, patch)
        return self._commit(tree, commit, "The run's change", datetime.fromtimestamp(0, UTC))

    def _patched(self, commit: str, patch: bytes) -> str:
        """Return the tree of the commit with this patch. Raises BadRequest if Git can't apply the patch."""
        index = {"GIT_INDEX_FILE": str(self._store.path / "patched-index")}
        words = ("apply", "--cached", "--whitespace=nowarn", "-")
        self._git("read-tree", commit, variables=index)
        with self._running(*words, variables=index) as process:
            _, said = process.communicate(patch)
        if process.returncode in _REFUSALS and not _IS_FULL.search(said):
            raise BadRequest(
                f"Git can't apply the run's change to the commit {commit}: {self._failure(words, said)}",
                field="workspace.git",
            )
        if process.returncode:
            raise self._failure(words, said)
        return self._git("write-tree", variables=index).decode().strip()

    def _clone(self, fresh: Path, checkout: Checkout) -> None:
        """Make a clone of the bare repository in a new folder, in which Git reads only settings from here."""
        branch = "" if COMMIT.fullmatch(checkout.revision) or checkout.revision == _HEAD else checkout.revision
        fresh.mkdir()
        git = {"GIT_DIR": str(fresh / ".git"), "GIT_WORK_TREE": str(fresh)}
        self._git("init", "--quiet", "--template=", f"--initial-branch={branch or 'main'}", variables=git)
        words = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow", str(self._store.path))
        self._git(*_STRICT, *words, f"+{_PINNED}:{_PINNED}", f"+{_FILES}:{_FILES}", variables=git)
        (fresh / ".git" / "info").mkdir(exist_ok=True)
        (fresh / ".git" / "info" / "attributes").write_bytes(_AS_THEY_ARE)
        self._git("config", "remote.origin.url", checkout.url, variables=git)
        self._git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*", variables=git)
        self._git(*_STRICT, "read-tree", "-u", "--reset", _FILES, variables=git)
        if branch:
            self._git("update-ref", f"refs/heads/{branch}", checkout.commit, variables=git)
        else:
            self._git("update-ref", "--no-deref", _HEAD, checkout.commit, variables=git)
        # The change is in the files, and not yet in the index: that is how the agent has left it.
        self._git(*_STRICT, "read-tree", checkout.commit, variables=git)
        self._git("update-index", "-q", "--really-refresh", variables=git, fails_with=(1,))
        for ref in (_PINNED, _FILES):
            self._git("update-ref", "-d", ref, variables=git)

    async def change(self, checkout: Checkout, *, unless: str = "") -> CloneChange | None:
        """See the port."""
        return await run_to_completion(self._change, checkout, unless)

    def _change(self, checkout: Checkout, unless: str) -> CloneChange | None:
        """Raise BadRequest if the files are such that trying again won't help."""
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
        path = self._store.path / _SIZE
        size = self._size()
        if not path.exists():
            keep(path, b"%d" % size)
        elif size > 2 * int(path.read_bytes()) + _MAY_GROW:
            try:
                self._git("repack", "-a", "-d", "-q", "--window=0")
                self._git("prune", "--expire=now")
            except StoreUnavailable as error:
                _log.warning("clone_not_pruned", folder=str(self._folder), error=str(error))
            keep(path, b"%d" % self._size())  # even if that failed, so that not each call tries it

    def _size(self) -> int:
        """Return the size of all objects in bytes."""
        counted = dict(line.split(": ") for line in self._git("count-objects", "-v").decode().splitlines())
        return 1024 * (int(counted["size"]) + int(counted["size-pack"]))

    def _changed(self, checkout: Checkout, unless: str) -> CloneChange | None:
        commit = checkout.commit
        label = Label(said="{}", at=datetime.now(UTC))
        recorded = record(self._store, self._lock, self._folder, label, hidden=self._home, settled=_SETTLED)
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
        """Return the changed files that a host runs. If no branch may have the commit, a push changes all of them."""
        is_anyones = (
            COMMIT.fullmatch(checkout.revision) and not (self._store.path / f"{_ON_A_BRANCH}{checkout.commit}").exists()
        )
        names = set(changed)
        if changed and is_anyones:
            names.update(path for path, _ in _entries(self._git("ls-tree", "-r", "-z", "--full-tree", tree)))
        return tuple(filter(is_continuous_integration, map(os.fsdecode, sorted(names))))

    def _names(self, commit: str, tree: str) -> list[bytes]:
        """Return which files differ."""
        listed = self._git("diff-tree", "-r", "-z", "--no-renames", "--name-only", commit, tree)
        return list(filter(None, listed.split(b"\0")))

    def _makes(self, tree: str, commit: str, patch: bytes) -> bool:
        """Whether the commit becomes this tree if Git applies the patch."""
        try:
            return self._patched(commit, patch) == tree
        except BadRequest:
            return False

    def _without(self, tree: str, commit: str, paths: Sequence[bytes]) -> str:
        """Return the tree, in which these paths are as in the commit."""
        pinned = dict(_entries(self._git("ls-tree", "-r", "-z", "--full-tree", commit)))
        none = f"0 {'0' * len(commit)}"
        index = {"GIT_INDEX_FILE": str(self._store.path / "change-index")}
        self._git("read-tree", tree, variables=index)
        feed = b"".join(b"%s\t%s\0" % (pinned.get(path, none).encode(), path) for path in paths)
        self._git("update-index", "-z", "--index-info", feed=feed, variables=index)
        return self._git("write-tree", "--missing-ok", variables=index).decode().strip()

    def _tree(self, commit: str, recorded: str) -> tuple[str, Set[bytes]]:
        """Return the tree of the clone's files, without those that Git ignores, and the files whose names Git refuses.
        Of what a snapshot leaves out, such as large files, the tree has what the commit has.
        """
        pinned = dict(_entries(self._git("ls-tree", "-r", "-z", "--full-tree", commit)))
        kept = self._store.kept(recorded)
        found = {os.fsencode(path): " ".join(entry) for path, entry in kept.files.items()}
        refused = {path for path, entry in found.items() if _is_refused(path, entry.split(" ")[0])}
        seen = {path: entry for path, entry in found.items() if path not in refused}
        back = self._left_out(pinned, seen, kept.facts.not_kept)
        gone = set(self._ignored(seen.keys() - pinned.keys(), {**back, **seen}))
        entries = {**back, **{path: entry for path, entry in seen.items() if path not in gone}}
        index = {"GIT_INDEX_FILE": str(self._store.path / "change-index")}
        self._git("read-tree", "--empty", variables=index)
        feed = b"".join(b"%s\t%s\0" % (entry.encode(), path) for path, entry in entries.items())
        self._git("update-index", "-z", "--index-info", feed=feed, variables=index)
        tree = self._git("write-tree", "--missing-ok", variables=index).decode().strip()
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
        copies = self._store.path / "ignore"
        delete(copies)
        copies.mkdir()
        try:
            self._copy_ignoring(tree, copies)
            at = {"GIT_WORK_TREE": str(copies), "GIT_INDEX_FILE": os.devnull}
            words = ("check-ignore", "--no-index", "--stdin", "-z")
            answer = self._git(*words, feed=asked, variables=at, fails_with=(1,), seconds=IGNORING_SECONDS)
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
        with Blobs(self._store) as blobs:
            for _, path, oid in found[:MOST_IGNORING]:
                content = blobs.read(oid)
                if len(content) <= left:
                    copy = copies / os.fsdecode(path)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_bytes(content)
                    left -= len(content)

    def _patch(self, commit: str, tree: str) -> bytes | None:
        """Return the difference as UTF-8 text, or None if it is too large. Files in another encoding are told as
        binary.
        """
        path = self._store.path / "patch"
        try:
            if self._write_patch(path, commit, tree):
                return path.read_bytes() if path.stat().st_size <= LARGEST_PATCH else None
            attributes = self._store.path / "info" / "attributes"
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
        with self._running(*words) as process, path.open("wb") as file:
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
            raise self._failure(words, said)
        return True

    async def push(self, checkout: Checkout, tree: str, branch: str, *, message: str, at: datetime) -> str:
        """See the port."""
        url, ref = checkout.url, f"refs/heads/{branch}"
        tip = _listed(await self._remote.refs(self._store.path, url, ref)).get(ref, "")
        commit = await run_to_completion(self._commit, tree, checkout.commit, message, at)
        if tip == commit:  # an earlier attempt has pushed it
            return commit
        if tip:
            raise RefusedError(
                f"the branch {branch} already exists in the repository, at {tip[:12]}: choose another name for `push`"
            )
        await self._remote.push(self._store.path, url, f"{commit}:{ref}")
        return commit

    def _commit(self, tree: str, parent: str, message: str, at: datetime) -> str:
        """Make a commit. Equal arguments make the same commit."""
        date = f"@{int(at.timestamp())} +0000"
        people = {
            f"GIT_{who}_{name}": value
            for who in ("AUTHOR", "COMMITTER")
            for name, value in {**_AUTHOR, "DATE": date}.items()
        }
        words = ("commit-tree", tree, "-p", parent, "-F", "-")
        return self._git(*words, feed=message.encode("utf-8", "replace"), variables=people).decode().strip()

    def _git(
        self,
        *words: str,
        feed: bytes = b"",
        variables: Mapping[str, str] = NO_VARIABLES,
        fails_with: tuple[int, ...] = (),
        seconds: float | None = None,
    ) -> bytes:
        """Run Git in the bare repository, or in the one in `variables`. The exit codes `fails_with` are no failures."""
        with self._running(*words, variables=variables, seconds=seconds) as process:
            out, said = process.communicate(feed)
        if process.returncode not in (0, *fails_with):
            raise self._failure(words, said)
        return out

    def _failure(self, words: Sequence[str], said: bytes) -> StoreUnavailable:
        return StoreUnavailable(self._remote.redacted(str(self._store.failure(command(words), said))))

    @contextmanager
    def _running(
        self, *words: str, variables: Mapping[str, str] = NO_VARIABLES, seconds: float | None = None
    ) -> Iterator[Popen[bytes]]:
        # Only the worker's user can open the folder with all clones.
        with self._store.running(
            *_FRUGAL, *words, lock=self._lock, variables=variables, umask=0o022, seconds=seconds
        ) as process:
            limit_memory(process.pid)
            yield process


def _discard(folder: Path) -> None:
    """Delete a folder that nobody needs. If that fails now, it is tried again when old clones are deleted."""
    try:
        delete(folder)
    except StoreUnavailable as error:
        _log.warning("clone_not_deleted", folder=str(folder), error=str(error))


def _listed(answer: str) -> dict[str, str]:
    """Return the commits of the refs in an answer of `git ls-remote`. The symbolic HEAD goes before its commit."""
    found: dict[str, str] = {}
    for line in answer.splitlines():
        commit, _, ref = line.partition("\t")
        found.setdefault(ref, commit)
    return found


def _branch_of_head(known: Mapping[str, str]) -> str:
    name = known[_HEAD].removeprefix("ref: refs/heads/")
    return name if name != known[_HEAD] and not problem_of_branch(name) else _HEAD


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split()
    except FileNotFoundError:
        return []


def _records(stream: IO[bytes] | None) -> Iterator[bytes]:
    """Yield the parts of the stream, each of which ends with a NUL."""
    rest = b""
    while stream is not None and (read := stream.read(2**16)):
        *whole, rest = (rest + read).split(b"\0")
        yield from whole


def _entries(listed: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the paths in a listing of Git, each with its mode and object id."""
    for line in filter(None, listed.split(b"\0")):
        head, _, path = line.partition(b"\t")
        words = head.decode("ascii").split(" ")
        yield path, f"{words[0]} {next(word for word in words[1:] if COMMIT.fullmatch(word))}"


def _above(path: bytes) -> Iterator[bytes]:
    """Yield the folders above this path."""
    at = path.rfind(b"/")
    while at > 0:
        yield path[:at]
        at = path.rfind(b"/", 0, at)


def _is_refused(path: bytes, mode: str) -> bool:
    """Whether Git refuses to check out this path, because it leads elsewhere on some systems, or is too long."""
    *folders, name = re.split(r"[/\\]", _IGNORED_BY_HFS.sub("", os.fsdecode(path)))
    shape = _REFUSED_LINK if mode == _LINK else _REFUSED_NAME
    return (
        len(path) > LONGEST_PATH
        or any(part in ("", ".", "..") for part in os.fsdecode(path).split("/"))
        or any(_REFUSED_NAME.fullmatch(part) for part in folders)
        or shape.fullmatch(name) is not None
    )


def _is_left_out(path: bytes, entry: str, not_kept: Mapping[str, str]) -> bool:
    """Whether a snapshot leaves the path out, so that its absence doesn't mean that it was deleted."""
    parts = os.fsdecode(path).split("/")
    above = ("/".join(parts[:length]) for length in range(1, len(parts) + 1))
    return (
        entry.startswith(_SUBMODULE)
        or not {*REGENERABLE, HIDDEN}.isdisjoint(parts[:-1])
        or any(each in not_kept for each in above)
    )
