"""Ends a sandboxed command that uses too much, by adding up what its whole tree uses a few times a second.

The view is the sandbox's own `/proc`, seen from outside: it lists exactly the processes of the command, however they
were detached. Between two looks a tree can overshoot by what it takes in that time; the kernel's limits per process and
the sizes of the temporary folders bound how far. Most commands have ended before the first look and pay nothing.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Final

from loom.activities.adapters.sandbox.resource_limits import Kind, explain
from loom.domain.tools.sandbox_limits import Limits

FIRST: Final = 0.05
"""Seconds until the first look; from then on twice as many each time, until there are `_PERIOD` between two."""

_PERIOD: Final = 0.2

_SHARE: Final = 20
"""The next look waits this many times the processor time of the last: the worker has other things to do.

Not the time on the clock, which is long just when a fork bomb leaves the worker none."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_INODE: Final = 1024
"""Bytes of memory that an empty file in /tmp costs, roughly."""

_RESERVE: Final = 1024**3
_RESERVED_FILES: Final = 100_000
"""What no command may take the last of; on a disk that has less than twice that, half of what it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a disk has left."""

    free: int
    """Bytes."""
    files: int
    """New files; zero on file systems that do not count them."""


def room(folder: Path) -> Room:
    """What the disk of this folder has left for this user."""
    found = os.statvfs(folder)
    return Room(free=found.f_bavail * found.f_frsize, files=found.f_favail)


@dataclass(frozen=True, kw_only=True, slots=True)
class Watchdog:
    """Looks after one command."""

    first: int
    """The first process of the sandbox, as the worker numbers it."""
    workspace: Path
    before: Room
    """The workspace's disk as it was when the command began."""
    temporary: Sequence[Path]
    """Folders inside that are kept in memory."""
    limits: Limits
    seconds: float
    """The command's timeout."""

    async def bark(self) -> str:
        """Wait until a limit is exceeded; says which, and what to do."""
        pause = FIRST
        with self._held() as kill:
            while True:
                begun = thread_time()
                if (kind := self.exceeded()) is not None:
                    kill()
                    return f"the command was stopped; {explain(kind, self.limits)}"
                await asyncio.sleep(max(pause, _SHARE * (thread_time() - begun)))
                pause = min(2 * pause, _PERIOD)

    @contextmanager
    def _held(self) -> Iterator[Callable[[], None]]:
        """A way to kill the first process, whoever may have its id by then."""
        try:
            held = os.pidfd_open(self.first)
        except OSError:  # it has ended
            yield lambda: None
            return
        try:
            self._offer_to_the_killer()
            yield partial(_kill, self.first, held)
        finally:
            os.close(held)

    def exceeded(self) -> Kind | None:
        """The first limit that the tree exceeds at this moment."""
        ids = self.processes()
        if not ids:
            return None
        if len(ids) > self.limits.processes:
            return "processes"
        found = [each for each in map(self._status, ids) if each is not None]
        if sum(each.threads for each in found) > self.limits.processes:
            return "processes"
        if sum(each.seconds for each in found) > self.limits.cpu * self.seconds:
            return "cpu"
        if self._in_temporary() + sum(each.resident for each in found) > self.limits.memory and self._is_over(ids):
            return "memory"
        return self._disk(ids)

    def processes(self) -> list[str]:
        """The ids of all its processes, as the sandbox numbers them; none before it stands or after it has ended."""
        with suppress(OSError):
            if Path(self._proc("1", "ns/pid")).samefile(f"/proc/{self.first}/ns/pid"):
                return [entry.name for entry in Path(self._proc()).iterdir() if entry.name.isdigit()]
        return []

    def _proc(self, *parts: str) -> str:
        return "/".join((f"/proc/{self.first}/root/proc", *parts))

    def _status(self, pid: str) -> "_Status | None":
        text = _read(self._proc(pid, "stat"))
        return _Status.parse(text) if text else None

    def _is_over(self, ids: list[str]) -> bool:
        """Counted again with shared pages divided among those who share them, which takes longer."""
        shares = sum(_field(_read(self._proc(pid, "smaps_rollup")), "Pss:") for pid in ids)
        return self._in_temporary() + shares * 1024 > self.limits.memory

    def _in_temporary(self) -> int:
        return sum(_in_memory(f"/proc/{self.first}/root{folder}") for folder in self.temporary)

    def _disk(self, ids: list[str]) -> Kind | None:
        """Written too much, by the tree's own account; or, whoever wrote it, the disk is nearly full."""
        now, before = room(self.workspace), self.before
        if now.free < min(_RESERVE, before.free // 2) or now.files < min(_RESERVED_FILES, before.files // 2):
            return "room"
        if before.free - now.free <= self.limits.disk:
            return None
        return "disk" if sum(self._written(pid) for pid in ids) > self.limits.disk else None

    def _written(self, pid: str) -> int:
        text = _read(self._proc(pid, "io"))
        return _field(text, "write_bytes:") - _field(text, "cancelled_write_bytes:")

    def _offer_to_the_killer(self) -> None:
        """When the machine runs out of memory, the kernel should take these and not the worker."""
        for pid in self._outside():
            with suppress(OSError):
                Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")

    def _outside(self) -> Iterator[str]:
        yield str(self.first)
        yield from _read(f"/proc/{self.first}/task/{self.first}/children").split()


@dataclass(frozen=True, slots=True)
class _Status:
    threads: int
    seconds: float
    """Of processor time, its ended children's included."""
    resident: int
    """Bytes of memory, shared ones included."""

    @classmethod
    def parse(cls, text: str) -> "_Status":
        """From a line of /proc/PID/stat; the program's name in it may hold anything."""
        fields = text.rpartition(")")[2].split()
        return cls(
            threads=int(fields[17]),
            seconds=sum(map(int, fields[11:15])) / _TICKS,
            resident=int(fields[21]) * _PAGE,
        )


def _kill(first: int, held: int) -> None:
    """With it the kernel kills all others and lets none begin; but among hundreds its turn to die comes late."""
    with suppress(OSError):  # only root may give it an earlier one, and only for root may there be that many
        os.sched_setscheduler(first, os.SCHED_RR, os.sched_param(1))
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(held, signal.SIGKILL)


def _read(path: str) -> str:
    """The file's text; empty when its process has ended."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> int:
    """The number after a name at the beginning of a line."""
    line = next((line for line in text.splitlines() if line.startswith(name)), "")
    return int(line.split()[1]) if line else 0


def _in_memory(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _INODE
