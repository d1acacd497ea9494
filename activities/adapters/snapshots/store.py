"""A bare Git repository for the snapshots of one workspace, and the only code that runs Git on it.

The repository has no work tree and no index, so it never affects the user's repository. Content is added with `git
fast-import`, which ignores filters, attributes and hooks. Every writer holds the store's lock, and so do the programs
that it starts. If a worker is killed, the lock is therefore held until these programs have ended. A program that takes
too long is ended.
"""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from threading import Event, Timer
from types import MappingProxyType
from typing import IO, Final

from loom.activities.adapters.snapshots.walk import Facts, Mark
from loom.activities.ports import StoreUnavailable
from loom.domain.core.messages import JsonObject

NO_GIT: Final = "snapshots need the `git` program: install it, or disable them (LOOM_SNAPSHOTS=off)"
FOLDER: Final = "workspace"
"""The folder in a snapshot's tree that contains the files. `FACTS` is next to this folder."""
FACTS: Final = "facts"
LATEST: Final = "refs/base/latest"
"""The ref of the newest state. It keeps the base of the next snapshot in the store."""
NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})
PATIENCE: Final = 60.0
"""Seconds to wait for another process that uses the same store."""
LONGEST: Final = 900.0
"""Seconds after which a Git process is ended."""


class TookTooLong(StoreUnavailable):
    """A Git process was ended, because it took too long."""


_OPTIONS: Final = tuple(
    word
    for option in (
        *("gc.auto=0", "core.protectNTFS=false", "core.protectHFS=false", "core.quotePath=false"),
        *("core.hooksPath=/dev/null", "core.fsmonitor=false"),
    )
    for word in ("-c", option)
)
_SEEN: Final = "seen.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A stored state of a workspace."""

    id: str
    run_id: str
    turn: int | None
    """The turn whose first change follows the snapshot, or None if the snapshot was taken before a restore."""
    call_id: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The state that the next snapshot is based on."""

    tree: str | None = None
    marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTree:
    """The content of a snapshot: its facts, and the mode and object id of every file and link."""

    files: Mapping[str, tuple[str, str]]
    facts: Facts


class Store:
    """The snapshots of one workspace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, root: Path, workspace: Path) -> "Store":
        """Return the store in `root` for the workspace with this real path."""
        return cls(root / blake2b(os.fsencode(workspace), digest_size=16).hexdigest())

    @property
    def workspace(self) -> Path:
        """The workspace's real path."""
        return Path(os.fsdecode((self.path / "workspace").read_bytes()))

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the store's lock until the end of the block, and yield its descriptor."""
        with self._lock_file() as handle:
            for _ in self._attempts(handle, PATIENCE):
                time.sleep(0.005)
            yield handle

    @asynccontextmanager
    async def held(self, patience: float) -> AsyncIterator[int]:
        """Hold the store's lock, as `locked` does, but wait for it without a thread."""
        with self._lock_file() as handle:
            for _ in self._attempts(handle, patience):
                await asyncio.sleep(0.02)
            yield handle

    @contextmanager
    def locked_now(self) -> Iterator[int | None]:
        """Hold the store's lock, or yield None if somebody else does."""
        with self._lock_file() as handle:
            yield handle if _lock(handle, self.lock_file) else None

    @contextmanager
    def _lock_file(self) -> Iterator[int]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield handle
        finally:
            os.close(handle)  # LOCK_UN would also release the lock for a program that outlives this process

    @property
    def lock_file(self) -> Path:
        """The file whose lock is the store's."""
        return self.path.with_name(f"{self.path.name}.lock")

    def _attempts(self, handle: int, patience: float) -> Iterator[None]:
        """Yield after each attempt to lock the file that fails. Raises StoreUnavailable when patience runs out."""
        deadline = time.monotonic() + patience
        while not _lock(handle, self.lock_file):
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"another process has used {self.path} for {patience:.0f} s: find out which process holds"
                    f" {self.lock_file}"
                )
            yield

    def prepare(self, workspace: Path, lock: int) -> None:
        """Create the repository if it doesn't exist. Raises StoreUnavailable if Git isn't installed."""
        _program()
        if (self.path / "ready").exists():
            return
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.unlock()
        self.git("init", "--quiet", "--bare", "--template=", str(self.path), lock=lock)
        keep(self.path / "workspace", os.fsencode(workspace))
        keep(self.path / "ready", b"")

    def git(
        self, *words: str, lock: int | None = None, feed: bytes = b"", variables: Mapping[str, str] = NO_VARIABLES
    ) -> bytes:
        """Run Git until it ends and return its output. Raises StoreUnavailable if Git fails."""
        with self.running(*words, lock=lock, variables=variables) as process:
            out, err = process.communicate(feed)
        if process.returncode:
            raise self.failure(command(words), err)
        return out

    @contextmanager
    def running(
        self,
        *words: str,
        lock: int | None = None,
        variables: Mapping[str, str] = NO_VARIABLES,
        umask: int = 0o077,
        seconds: float | None = None,
    ) -> "Iterator[subprocess.Popen[bytes]]":
        """Run Git for this store, with these environment variables, until the end of the block. Git ignores user-level
        and system-level configuration. Raises TookTooLong after so many seconds, by default LONGEST.
        """
        longest = LONGEST if seconds is None else seconds
        process = subprocess.Popen(
            command_line(*words),
            cwd=self.path,
            env={**environment(self.path), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=umask,
            start_new_session=True,  # only the worker must receive Ctrl-C, so that it can shut down gracefully
            pass_fds=() if lock is None else (lock,),
        )
        is_late = Event()

        def expire() -> None:
            is_late.set()
            end(process)

        timer = Timer(longest, expire)
        timer.daemon = True
        timer.start()
        try:
            with process:
                try:
                    yield process
                except BaseException:
                    end(process)
                    raise
        except (StoreUnavailable, OSError):
            if not is_late.is_set():
                raise
        finally:
            timer.cancel()
        if is_late.is_set():
            raise TookTooLong(
                f"git {command(words)} was ended on {self.path}, because it took longer than {longest:.0f} s"
            )

    def failure(self, word: str, said: bytes) -> StoreUnavailable:
        """Return the error to raise when `git word` has failed."""
        why = " ".join(said.decode(errors="replace").split())[:300]
        return StoreUnavailable(f"git {word} failed on {self.path}: {why or 'it was killed'}")

    def next_number(self, lock: int) -> int:
        """Return a number that is larger than all previous numbers, including numbers that were never used."""
        path = self.path / "count"
        try:
            number = int(path.read_text(encoding="ascii")) + 1
        except (FileNotFoundError, ValueError):
            names = self.git("for-each-ref", "--format=%(refname)", "refs/loom/", lock=lock).decode().split()
            number = 1 + max((int(name.rpartition("/")[2]) for name in names), default=0)
        keep(path, b"%d" % number)
        return number

    def base(self) -> Base:
        """Return the recorded state, or an empty state if none can be read."""
        try:
            found = json.loads((self.path / _SEEN).read_text(encoding="utf-8"))
            return Base(tree=found["tree"], marks={path: tuple(marks) for path, marks in found["files"].items()})
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return Base()

    def keep_base(self, base: Base) -> None:
        """Record the state."""
        text = json.dumps({"tree": base.tree, "files": base.marks}, separators=(",", ":"))
        keep(self.path / _SEEN, text.encode())

    def mend(self, lock: int) -> None:
        """Remove the locks and broken objects that a crash or a power failure has left behind. Unreadable snapshots are
        deleted.
        """
        (self.path / _SEEN).unlink(missing_ok=True)
        self.unlock()
        refs = self.git("for-each-ref", "--format=%(refname)", lock=lock)
        found = self.git("cat-file", "--batch-check=%(objecttype)", lock=lock, feed=refs).splitlines()
        broken = [ref for ref, kind in zip(refs.splitlines(), found, strict=True) if kind != b"commit"]
        self.git("update-ref", "--stdin", lock=lock, feed=b"".join(b"delete %s\n" % ref for ref in broken))

    def unlock(self) -> None:
        """Remove Git's locks. This process holds the store's lock, so the process that created Git's locks is dead."""
        objects = self.path / "objects"
        folders = (self.path, objects, objects / "info", objects / "pack")  # and none of the 256 with loose objects
        found = (*(each for folder in folders for each in folder.glob("*.lock")), *(self.path / "refs").rglob("*.lock"))
        for stale in found:
            stale.unlink(missing_ok=True)

    def list(self, run_id: str) -> tuple[Snapshot, ...]:
        """Return the run's snapshots, oldest first."""
        listed = self.git("for-each-ref", "--format=%(objectname) %(contents:subject)", refs_of(run_id))
        return tuple(_snapshot(*line.split(" ", 1)) for line in listed.decode().splitlines())

    def kept(self, commit: str) -> StoredTree:
        """Return the content of a snapshot."""
        listed = self.git("ls-tree", "-r", "-z", "--full-tree", commit, f"{FOLDER}/")
        entries = (entry.partition(b"\t") for entry in listed.split(b"\0") if entry)
        files = {os.fsdecode(path)[len(FOLDER) + 1 :]: _entry(head) for head, _, path in entries}
        return StoredTree(files=files, facts=read_facts(self.git("cat-file", "blob", f"{commit}:{FACTS}")))


class Blobs:
    """Reads content by object id. All reads use a single `git cat-file` process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stack = ExitStack()

    def __enter__(self) -> "Blobs":
        self._process = self._stack.enter_context(self._store.running("cat-file", "--batch"))
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            self._process.communicate()

    def read(self, oid: str) -> bytes:
        """Return the content. Raises OSError if the store no longer contains it."""
        asked, answers = _pipes(self._process)
        asked.write(f"{oid}\n".encode())
        asked.flush()
        head = answers.readline().split()
        if len(head) != 3:
            raise OSError(f"the snapshot's content {oid} is damaged in the store")
        data = answers.read(int(head[2]))
        answers.read(1)
        return data


def refs_of(run_id: str) -> str:
    """Return the ref prefix of a run's snapshots. The id is encoded, because it can contain characters that aren't
    valid in a ref.
    """
    return f"refs/loom/{blake2b(run_id.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}/"


def write_facts(facts: Facts) -> bytes:
    """Serialize facts. Equal facts produce the same bytes."""
    return json.dumps({"empty": facts.empty, "modes": facts.modes, "not_kept": facts.not_kept}).encode()


def read_facts(stored: bytes) -> Facts:
    """Parse stored facts."""
    found = json.loads(stored)
    return Facts(empty=tuple(found["empty"]), modes=found["modes"], not_kept=found["not_kept"])


def command(words: Sequence[str]) -> str:
    """Return Git's command among the words of a command line, which may begin with settings."""
    at = 0
    while words[at] == "-c":
        at += 2
    return words[at]


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with those that it has started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _lock(handle: int, path: Path) -> bool:
    """Lock the open file, and return whether this was possible. A file that has been deleted meanwhile is replaced."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), path.stat()):
            return True
    fresh = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.dup2(fresh, handle, inheritable=False)
    os.close(fresh)
    return False


def _program() -> str:
    program = shutil.which("git")
    if program is None:
        raise StoreUnavailable(NO_GIT)
    return program


def command_line(*words: str) -> Sequence[str]:
    """Return the command that runs Git for a store. Raises StoreUnavailable if Git isn't installed."""
    return (_program(), *_OPTIONS, *words)


def environment(store: Path) -> dict[str, str]:
    """Return the environment in which Git uses the store, and no configuration from elsewhere."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(store),
        "LC_ALL": "C",
        "GIT_DIR": str(store),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }


def _snapshot(commit: str, message: str) -> Snapshot:
    said: JsonObject = json.loads(message)
    return Snapshot(
        id=commit,
        run_id=said["run_id"],
        turn=said["turn"],
        call_id=said["call_id"],
        at=datetime.fromisoformat(said["at"]),
    )


def _entry(head: bytes) -> tuple[str, str]:
    mode, _, oid = head.decode("ascii").split(" ")
    return mode, oid


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None:
        raise ValueError("the program was started without pipes")
    return process.stdin, process.stdout


def keep(path: Path, content: bytes) -> None:
    """Write a file atomically. Only its owner can read it."""
    draft = path.with_name(f"{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)
