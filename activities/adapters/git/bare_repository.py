"""The bare repository of one clone: Git commands in it, while this process holds its lock.

Once an agent has worked in a clone, Git doesn't read anything in it: settings in its `.git` could name programs, and a
file could be a pipe. All files that Git itself writes or reads are in the bare repository's folder. Attributes and
filters don't apply: files have the same bytes as in the commit.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from typing import IO, Final, TypeVar

import structlog

from loom.activities.adapters.git.deletion import delete
from loom.activities.adapters.git.remotes import FRUGAL, RemoteGit, limit_memory
from loom.activities.adapters.snapshots.store import NO_VARIABLES, Store, command, command_line, environment
from loom.activities.ports import StoreUnavailable
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import COMMIT

_log = structlog.get_logger("loom.clones")

_ON_A_BRANCH: Final = "on-a-branch-"
_FRUGAL: Final = tuple(word for setting in FRUGAL for word in ("-c", setting))
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


class BareRepository:
    """The repository from which a clone is made, and with which its change is computed."""

    def __init__(self, store: Store, lock: int, remote: RemoteGit) -> None:
        self.store = store
        self.lock = lock
        self._remote = remote

    @property
    def path(self) -> Path:
        """The repository's folder."""
        return self.store.path

    def prepare(self, folder: Path) -> None:
        """Create the repository of the clone in this folder if it doesn't exist."""
        self.store.prepare(folder, self.lock)

    def has(self, commit: str) -> bool:
        """Whether the repository has the commit."""
        answer = self.git("cat-file", "--batch-check=%(objecttype)", feed=f"{commit}\n".encode())
        return answer.strip() == b"commit"

    def record_on_branch(self, commit: str) -> None:
        """Record that the commit is the latest one of a branch or tag."""
        (self.path / f"{_ON_A_BRANCH}{commit}").touch()

    def is_on_branch(self, commit: str) -> bool:
        """Whether the commit was the latest one of a branch or tag."""
        return (self.path / f"{_ON_A_BRANCH}{commit}").exists()

    def patched(self, commit: str, patch: bytes) -> str:
        """Return the tree of the commit with this patch. Raises BadRequest if Git can't apply the patch."""
        index = {"GIT_INDEX_FILE": str(self.path / "patched-index")}
        words = ("apply", "--cached", "--whitespace=nowarn", "-")
        self.git("read-tree", commit, variables=index)
        with self.running(*words, variables=index) as process:
            _, said = process.communicate(patch)
        if process.returncode in _REFUSALS and not _IS_FULL.search(said):
            raise BadRequest(
                f"Git can't apply the run's change to the commit {commit}: {self.failure(words, said)}",
                field="workspace.git",
            )
        if process.returncode:
            raise self.failure(words, said)
        return self.git("write-tree", variables=index).decode().strip()

    def commit(self, tree: str, parent: str, message: str, at: datetime) -> str:
        """Make a commit. Equal arguments make the same commit."""
        date = f"@{int(at.timestamp())} +0000"
        people = {
            f"GIT_{who}_{name}": value
            for who in ("AUTHOR", "COMMITTER")
            for name, value in {**_AUTHOR, "DATE": date}.items()
        }
        words = ("commit-tree", tree, "-p", parent, "-F", "-")
        return self.git(*words, feed=message.encode("utf-8", "replace"), variables=people).decode().strip()

    def git(
        self,
        *words: str,
        feed: bytes = b"",
        variables: Mapping[str, str] = NO_VARIABLES,
        fails_with: tuple[int, ...] = (),
        seconds: float | None = None,
    ) -> bytes:
        """Run Git in the bare repository, or in the one in `variables`. The exit codes `fails_with` are no failures."""
        with self.running(*words, variables=variables, seconds=seconds) as process:
            out, said = process.communicate(feed)
        if process.returncode not in (0, *fails_with):
            raise self.failure(words, said)
        return out

    def failure(self, words: Sequence[str], said: bytes) -> StoreUnavailable:
        """Return the error to raise when these words have failed."""
        return StoreUnavailable(self._remote.redacted(str(self.store.failure(command(words), said))))

    async def started(
        self, *words: str, at: Path, feed: int, out: IO[bytes], said: IO[bytes]
    ) -> asyncio.subprocess.Process:
        """Start Git in another repository, which nobody else uses. The caller ends it."""
        process = await asyncio.create_subprocess_exec(
            *command_line(*_FRUGAL, *words),
            cwd=at,
            env=environment(at),
            stdin=feed,
            stdout=out,
            stderr=said,
            umask=0o022,
            start_new_session=True,
        )
        limit_memory(process.pid)
        return process

    @contextmanager
    def running(
        self, *words: str, variables: Mapping[str, str] = NO_VARIABLES, seconds: float | None = None
    ) -> Iterator[Popen[bytes]]:
        """Run Git until the end of the block."""
        # Only the worker's user can open the folder with all clones.
        with self.store.running(
            *_FRUGAL, *words, lock=self.lock, variables=variables, umask=0o022, seconds=seconds
        ) as process:
            limit_memory(process.pid)
            yield process


def discard(folder: Path) -> None:
    """Delete a folder that nobody needs. If that fails now, it is tried again when old clones are deleted."""
    try:
        delete(folder)
    except StoreUnavailable as error:
        _log.warning("clone_not_deleted", folder=str(folder), error=str(error))


def entries_of(listed: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the paths in a listing of Git, each with its mode and object id."""
    for line in filter(None, listed.split(b"\0")):
        head, _, path = line.partition(b"\t")
        words = head.decode("ascii").split(" ")
        yield path, f"{words[0]} {next(word for word in words[1:] if COMMIT.fullmatch(word))}"
