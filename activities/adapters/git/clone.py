"""One clone of a run: it is fetched, built in a folder, and its change is computed and pushed.

The clone is made from a bare repository that no agent can write (`bare_repository`). A process that is killed meanwhile
leaves no incomplete clone.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

from loom.activities.adapters.git.bare_repository import BareRepository, discard, run_to_completion
from loom.activities.adapters.git.changes import Changes
from loom.activities.adapters.git.deletion import delete
from loom.activities.adapters.git.refused_paths import is_refused
from loom.activities.adapters.git.remotes import LARGEST, RemoteGit
from loom.activities.adapters.git.unpacking import Unpacker
from loom.activities.adapters.snapshots.store import Store, TookTooLong, keep
from loom.activities.adapters.snapshots.walk import MOST
from loom.activities.ports import CloneChange, CloneState, StoreUnavailable
from loom.domain.core.errors import BadRequest, RefusedError
from loom.domain.core.repositories import ARCHIVE, COMMIT, Checkout, GitWorkspace, problem_of_branch

HISTORY: Final = 50
"""The number of commits in a clone, including the pinned one."""
LARGEST_OBJECT: Final = 16 * 2**20
"""The size in bytes of the largest commit, and of the largest list of the files in one."""
_STATE: Final = "clone.json"
_INCOMING: Final = "incoming-"
_SHALLOW: Final = "shallow"
_PACKS: Final = "objects/pack"
_HEAD: Final = "HEAD"
_MAIN: Final = "main"
_PINNED: Final = "refs/loom/pinned"
_FILES: Final = "refs/loom/files"
_MOST_TOLD: Final = 200
_AS_THEY_ARE: Final = b"* -text -eol -ident -filter -working-tree-encoding\n"
"""The attributes of a clone: Git writes and reads all files as they are."""
_STRICT: Final = (
    *("-c", "core.protectNTFS=true", "-c", "core.protectHFS=true"),
    *("-c", "core.hooksPath=/dev/null", "-c", "submodule.recurse=false"),
)


class RunClone:
    """One clone, while this process holds its lock."""

    def __init__(self, folder: Path, store: Store, lock: int, home: Path, remote: RemoteGit) -> None:
        self._folder = folder
        self._remote = remote
        self._repository = BareRepository(store, lock, remote)
        self._changes = Changes(self._repository, folder, home)
        self._unpacker = Unpacker(self._repository)

    @property
    def state(self) -> CloneState | None:
        """See the port."""
        try:
            known = CloneState(**json.loads((self._repository.path / _STATE).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return known if self._folder.is_dir() else None

    async def keep(self, state: CloneState) -> None:
        """See the port."""
        await run_to_completion(keep, self._repository.path / _STATE, json.dumps(asdict(state)).encode())

    async def pin(self, workspace: GitWorkspace) -> Checkout:
        """See the port."""
        await run_to_completion(self._repository.prepare, self._folder)
        url, revision = workspace.git, workspace.revision
        if COMMIT.fullmatch(revision):
            commit = await self._fetch_commit(url, revision)
            await self._look_for_branch(url, commit)
            return self._checkout(url, commit, revision)
        ref, name = await self._found(workspace)
        return self._checkout(url, await self._fetch(url, ref), name)

    async def unpack(self, content: bytes, name: str) -> Checkout:
        """See the port."""
        await run_to_completion(self._repository.prepare, self._folder)
        async with self._incoming() as incoming:
            unpacked = await self._unpacker.unpack(content, incoming)
            await run_to_completion(self._take, incoming, unpacked.commit)
        url = f"{ARCHIVE}{sha256(content).hexdigest()}"
        checkout = self._checkout(url, unpacked.commit, name)
        return replace(checkout, left_out=unpacked.left_out) if unpacked.left_out else checkout

    async def has(self, commit: str) -> bool:
        """See the port."""
        await run_to_completion(self._repository.prepare, self._folder)
        return await run_to_completion(self._repository.has, commit)

    def _checkout(self, url: str, commit: str, revision: str) -> Checkout:
        return Checkout(url=url, commit=commit, revision=revision, folder=str(self._folder))

    async def _found(self, workspace: GitWorkspace) -> tuple[str, str]:
        """Return the full name of the revision, and the name to show. A branch goes before a tag."""
        url, name = workspace.git, workspace.revision
        wanted = (f"refs/heads/{name}", f"refs/tags/{name}") if name else (_HEAD,)
        known = _listed(await self._remote.refs(self._repository.path, url, *wanted))
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
            known = _listed(await self._remote.refs(self._repository.path, url, "refs/heads/*", "refs/tags/*"))
        except BadRequest:  # too many to read
            return
        if commit in known.values():
            self._repository.record_on_branch(commit)

    async def _fetch(self, url: str, ref: str) -> str:
        """Fetch a ref with some history, and return its commit."""
        async with self._incoming() as incoming:
            await self._remote.fetch(incoming, url, f"+{ref}:{_PINNED}", HISTORY)
            commit = await run_to_completion(self._fetched, incoming, url, ref)
            await run_to_completion(self._take, incoming, commit)
        return commit

    @asynccontextmanager
    async def _incoming(self) -> AsyncIterator[Path]:
        """Make a repository that nobody else uses, and discard it at the end of the block. If this process is killed,
        Git may go on for a while, and write there.
        """
        for left in self._repository.path.glob(f"{_INCOMING}*"):
            await run_to_completion(discard, left)
        incoming = self._repository.path / f"{_INCOMING}{uuid4().hex}"
        at = {"GIT_DIR": str(incoming)}
        try:
            await run_to_completion(
                partial(self._repository.git, "init", "--quiet", "--bare", "--template=", variables=at)
            )
            yield incoming
        finally:
            await run_to_completion(discard, incoming)

    def _fetched(self, incoming: Path, url: str, ref: str) -> str:
        """Return the commit that was fetched. Raises BadRequest if it is too large."""
        at = {"GIT_DIR": str(incoming)}
        words = ("rev-parse", "--quiet", "--verify", f"{_PINNED}^{{commit}}")
        commit = self._repository.git(*words, variables=at, fails_with=(1, 128)).decode().strip()
        if not COMMIT.fullmatch(commit):
            raise BadRequest(f"{ref} is not a commit in {url}", field="workspace.revision")
        asked = f"{commit}\n{commit}^{{tree}}\n".encode()
        sizes = self._repository.git("cat-file", "--batch-check=%(objectsize)", feed=asked, variables=at).split()
        if any(size.isdigit() and int(size) > LARGEST_OBJECT for size in sizes):
            raise BadRequest(
                f"the commit {commit} of {url} is too large: its message, or the list of its files, has more than"
                f" {LARGEST_OBJECT // 2**20} MB",
                field="workspace.git",
            )
        return commit

    def _take(self, incoming: Path, commit: str) -> None:
        """Move the objects to the bare repository, and pin the commit."""
        # Git uses a pack as soon as its index is there, and then has to know where the history ends.
        shallow = {line for each in (self._repository.path, incoming) for line in _lines(each / _SHALLOW)}
        if shallow:
            keep(self._repository.path / _SHALLOW, b"".join(b"%s\n" % line for line in sorted(shallow)))
        packs = sorted((incoming / _PACKS).iterdir(), key=lambda path: (path.suffix == ".idx", path.name))
        (self._repository.path / _PACKS).mkdir(exist_ok=True)
        for pack in packs:
            pack.replace(self._repository.path / _PACKS / pack.name)
        self._repository.git("update-ref", _PINNED, commit)

    async def build(self, checkout: Checkout, patch: bytes = b"", version: int = 0) -> None:
        """See the port."""
        if not await self.has(checkout.commit):
            if checkout.archive:
                raise StoreUnavailable(f"{_source(checkout)} isn't unpacked in {self._folder}")
            await self._fetch_commit(checkout.url, checkout.commit)
            if COMMIT.fullmatch(checkout.revision):
                await self._look_for_branch(checkout.url, checkout.commit)
        try:
            tree = await run_to_completion(self._build, checkout, patch)
        except TookTooLong as error:
            if not checkout.archive:
                raise
            raise BadRequest(f"{_source(checkout)} can't be cloned: {error}", field="workspace.archive") from None
        await self.keep(
            CloneState(
                commit=checkout.commit, version=version, tree=tree, is_restored=version > 0, generation=uuid4().hex
            )
        )

    def _build(self, checkout: Checkout, patch: bytes) -> str:
        """Make the clone under another name, so that a crash leaves none that is incomplete. Return its tree."""
        self._refuse_unusual(checkout)
        (self._repository.path / _STATE).unlink(missing_ok=True)
        fresh = self._folder.with_name(f"{self._folder.name}.new")
        delete(fresh)
        self._repository.git("update-ref", _PINNED, checkout.commit)
        self._repository.git(
            "update-ref", _FILES, self._with_patch(checkout.commit, patch) if patch else checkout.commit
        )
        self._clone(fresh, checkout)
        old = self._folder.with_name(f"{self._folder.name}.old-{uuid4().hex}")
        if os.path.lexists(self._folder):
            self._folder.rename(old)
        fresh.rename(self._folder)
        discard(old)
        return self._repository.git("rev-parse", f"{_FILES}^{{tree}}").decode().strip()

    def _refuse_unusual(self, checkout: Checkout) -> None:
        """Raise BadRequest if the commit has more than a clone may contain, or names that lead elsewhere."""
        try:
            self._refuse_unusual_entries(checkout)
        except TookTooLong as error:
            raise BadRequest(f"{_source(checkout)} can't be cloned: {error}", field="workspace") from None

    def _refuse_unusual_entries(self, checkout: Checkout) -> None:
        entries = size = 0
        with self._repository.running("ls-tree", "-r", "-t", "-l", "-z", "--full-tree", checkout.commit) as process:
            for entry in _records(process.stdout):
                head, _, path = entry.partition(b"\t")
                mode, *_, length = head.decode("ascii").split()
                entries += 1
                size += int(length) if length.isdecimal() else 0
                if entries > MOST or size > LARGEST:
                    raise BadRequest(
                        f"{_source(checkout)} is too large: a clone has at most {MOST:,} files and folders, and"
                        f" {LARGEST / 2**30:g} GB",
                        field="workspace",
                    )
                if is_refused(path, mode):
                    raise BadRequest(
                        f"{_source(checkout)} has the path {os.fsdecode(path[:_MOST_TOLD])!r}, which Git doesn't check"
                        " out: rename it there",
                        field="workspace",
                    )
            said = process.stderr.read() if process.stderr else b""
        if process.returncode:
            raise self._repository.failure(("ls-tree",), said)

    def _with_patch(self, commit: str, patch: bytes) -> str:
        tree = self._repository.patched(commit, patch)
        return self._repository.commit(tree, commit, "The run's change", datetime.fromtimestamp(0, UTC))

    def _clone(self, fresh: Path, checkout: Checkout) -> None:
        """Make a clone of the bare repository in a new folder, in which Git reads only settings from here."""
        branch = _branch(checkout)
        fresh.mkdir()
        git = {"GIT_DIR": str(fresh / ".git"), "GIT_WORK_TREE": str(fresh)}
        self._repository.git("init", "--quiet", "--template=", f"--initial-branch={branch or _MAIN}", variables=git)
        words = (
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--update-shallow",
            str(self._repository.path),
        )
        self._repository.git(*_STRICT, *words, f"+{_PINNED}:{_PINNED}", f"+{_FILES}:{_FILES}", variables=git)
        (fresh / ".git" / "info").mkdir(exist_ok=True)
        (fresh / ".git" / "info" / "attributes").write_bytes(_AS_THEY_ARE)
        if not checkout.archive:
            self._repository.git("config", "remote.origin.url", checkout.url, variables=git)
            self._repository.git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*", variables=git)
        self._repository.git(*_STRICT, "read-tree", "-u", "--reset", _FILES, variables=git)
        if branch:
            self._repository.git("update-ref", f"refs/heads/{branch}", checkout.commit, variables=git)
        else:
            self._repository.git("update-ref", "--no-deref", _HEAD, checkout.commit, variables=git)
        # The change is in the files, and not yet in the index: that is how the agent has left it.
        self._repository.git(*_STRICT, "read-tree", checkout.commit, variables=git)
        self._repository.git("update-index", "-q", "--really-refresh", variables=git, fails_with=(1,))
        for ref in (_PINNED, _FILES):
            self._repository.git("update-ref", "-d", ref, variables=git)

    async def change(self, checkout: Checkout, *, unless: str = "") -> CloneChange | None:
        """See the port."""
        return await run_to_completion(self._changes.of, checkout, unless)

    async def push(self, checkout: Checkout, tree: str, branch: str, *, message: str, at: datetime) -> str:
        """See the port."""
        url, ref = checkout.url, f"refs/heads/{branch}"
        tip = _listed(await self._remote.refs(self._repository.path, url, ref)).get(ref, "")
        commit = await run_to_completion(self._repository.commit, tree, checkout.commit, message, at)
        if tip == commit:  # an earlier attempt has pushed it
            return commit
        if tip:
            raise RefusedError(
                f"the branch {branch} already exists in the repository, at {tip[:12]}: choose another name for `push`"
            )
        await self._remote.push(self._repository.path, url, f"{commit}:{ref}")
        return commit


def _source(checkout: Checkout) -> str:
    """Return what the clone is made from, for a sentence."""
    return (
        f"the archive {checkout.revision or checkout.archive}"
        if checkout.archive
        else f"the commit {checkout.commit} of {checkout.url}"
    )


def _branch(checkout: Checkout) -> str:
    """Return the branch that the clone is on. Empty if it is on none."""
    if checkout.archive:
        return _MAIN
    return "" if COMMIT.fullmatch(checkout.revision) or checkout.revision == _HEAD else checkout.revision


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
