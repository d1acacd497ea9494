"""Stop a sandboxed command that exceeds its limits. Several times a second, the watchdog adds up the usage of all of
the command's processes.

The watchdog reads the sandbox's own `/proc` from outside the sandbox. This folder lists all of the command's processes,
including detached processes, and no other processes. Between two checks, the command's processes can temporarily exceed
a limit. The kernel's limits per process and the sizes of the temporary folders restrict this excess. Most commands end
before the first check and cause no overhead.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, thread_time
from typing import Final

from loom.activities.adapters.sandbox.resource_limits import Kind, explain
from loom.domain.tools.sandbox_limits import Limits

FIRST: Final = 0.05
"""Seconds until the first check. The interval then doubles until it reaches `_PERIOD`."""

_PERIOD: Final = 0.2

_SHARE: Final = 20
"""The delay before a check is at least this number of times the processor time of the previous check. The worker
therefore has time for other work.

The delay isn't based on the elapsed time of the check, because that time increases when a fork bomb takes the worker's
processor time.
"""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_INODE: Final = 1024
"""Approximate number of bytes of memory that an empty file in /tmp uses."""

_RESERVE: Final = 1024**3
_RESERVED_FILES: Final = 100_000
"""Disk space that must remain free. If less than twice this amount was free when the command started, half of the space
that was free then must remain free.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FreeSpace:
    """The free space on a disk."""

    free: int
    """Free bytes."""
    files: int
    """Free inodes, or zero on file systems that don't count them."""


def free_space(folder: Path) -> FreeSpace:
    """Return the disk space that is available to this user on the folder's disk."""
    found = os.statvfs(folder)
    return FreeSpace(free=found.f_bavail * found.f_frsize, files=found.f_favail)


@dataclass(frozen=True, kw_only=True, slots=True)
class Watchdog:
    """Watches one command."""

    first: int
    """Process id of the sandbox's first process in the worker's namespace."""
    workspace: Path
    before: FreeSpace
    """Free space on the workspace's disk when the command started."""
    temporary: Sequence[Path]
    """In-memory folders in the sandbox."""
    limits: Limits
    seconds: float
    """The command's timeout in seconds."""
    used: float = 0.0
    """The processor time in seconds that the processes had used before."""

    async def wait_for_excess(self) -> str:
        """Wait until a limit is exceeded. Return a message that names the limit and tells the user what to do."""
        with self._held() as kill:
            kind = await self._excess()
            kill()
        return f"the command was stopped; {explain(kind, self.limits)}"

    async def _excess(self) -> Kind:
        """Wait until a limit is exceeded. Suspicions are confirmed in a thread, while the other checks continue."""
        pause, next_confirmation = FIRST, 0.0
        confirming: asyncio.Future[_Confirmed] | None = None
        while True:
            begun = thread_time()
            found = self._check()
            if found.exceeded is not None:
                return found.exceeded
            if confirming is None and found.suspected and monotonic() >= next_confirmation:
                confirming = asyncio.get_running_loop().run_in_executor(None, self._confirm, found)
            delay = max(pause, _SHARE * (thread_time() - begun))
            if confirming is None:
                await asyncio.sleep(delay)
            elif (await asyncio.wait({confirming}, timeout=delay))[0]:
                confirmed, confirming = confirming.result(), None
                if confirmed.exceeded is not None:
                    return confirmed.exceeded
                next_confirmation = monotonic() + _SHARE * confirmed.seconds
                await asyncio.sleep(delay)
            pause = min(2 * pause, _PERIOD)

    @contextmanager
    def _held(self) -> Iterator[Callable[[], None]]:
        """Yield a function that kills the first process. It never kills another process that has reused the id."""
        try:
            held = os.pidfd_open(self.first)
        except OSError:  # the process has ended
            yield lambda: None
            return
        try:
            self._offer_to_the_killer()
            yield partial(_kill, self.first, held)
        finally:
            os.close(held)

    def _check(self) -> "_Checked":
        """Check the limits without waiting for any of the processes."""
        ids = self.processes()
        if not ids:
            return _Checked()
        if len(ids) > self.limits.processes:
            return _Checked(exceeded="processes")
        found = [each for each in map(self._status, ids) if each is not None]
        if sum(each.threads for each in found) > self.limits.processes:
            return _Checked(exceeded="processes")
        if sum(each.seconds for each in found) - self.used > self.limits.cpu * self.seconds:
            return _Checked(exceeded="cpu")
        now, before = free_space(self.workspace), self.before
        if now.free < min(_RESERVE, before.free // 2) or now.files < min(_RESERVED_FILES, before.files // 2):
            return _Checked(exceeded="room")
        suspected: list[Kind] = []
        if self._in_temporary() + sum(each.resident for each in found) > self.limits.memory:
            suspected.append("memory")
        if before.free - now.free > self.limits.disk:
            suspected.append("disk")
        return _Checked(processes=ids, suspected=suspected)

    def _confirm(self, checked: "_Checked") -> "_Confirmed":
        """Check the suspected limits exactly.

        The kernel makes this wait for each process that is changing its memory, as in `fork` or `exec`. If dozens of
        processes do so all the time, it takes a minute.
        """
        begun, over = thread_time(), {"memory": self._uses_too_much_memory, "disk": self._has_written_too_much}
        exceeded = next((kind for kind in checked.suspected if over[kind](checked.processes)), None)
        return _Confirmed(exceeded=exceeded, seconds=thread_time() - begun)

    def processor_time(self) -> float:
        """Return the processor time in seconds that the processes have used so far."""
        found = map(self._status, self.processes())
        return sum(each.seconds for each in found if each is not None)

    def processes(self) -> list[str]:
        """Return the ids of all processes in the sandbox's namespace. The list is empty before the sandbox starts and
        after it has ended.
        """
        with suppress(OSError):
            if Path(self._proc("1", "ns/pid")).samefile(f"/proc/{self.first}/ns/pid"):
                return [entry.name for entry in Path(self._proc()).iterdir() if entry.name.isdigit()]
        return []

    def _proc(self, *parts: str) -> str:
        return "/".join((f"/proc/{self.first}/root/proc", *parts))

    def _status(self, pid: str) -> "_Status | None":
        text = _read(self._proc(pid, "stat"))
        return _Status.parse(text) if text else None

    def _uses_too_much_memory(self, ids: Sequence[str]) -> bool:
        """Whether the processes exceed the memory limit, with shared pages divided among the processes that share
        them.
        """
        shares = sum(_field(_read(self._proc(pid, "smaps_rollup")), "Pss:") for pid in ids)
        return self._in_temporary() + shares * 1024 > self.limits.memory

    def _in_temporary(self) -> int:
        return sum(_in_memory(f"/proc/{self.first}/root{folder}") for folder in self.temporary)

    def _has_written_too_much(self, ids: Sequence[str]) -> bool:
        return sum(self._written(pid) for pid in ids) > self.limits.disk

    def _written(self, pid: str) -> int:
        text = _read(self._proc(pid, "io"))
        return _field(text, "write_bytes:") - _field(text, "cancelled_write_bytes:")

    def _offer_to_the_killer(self) -> None:
        """Make the kernel kill these processes instead of the worker if the machine runs out of memory."""
        for pid in self._outside():
            with suppress(OSError):
                Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")

    def _outside(self) -> Iterator[str]:
        yield str(self.first)
        yield from _read(f"/proc/{self.first}/task/{self.first}/children").split()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checked:
    """The result of a quick check."""

    exceeded: Kind | None = None
    processes: Sequence[str] = ()
    suspected: Sequence[Kind] = ()
    """Limits that the processes may exceed. Other processes may have filled the disk, and processes share memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Confirmed:
    """The result of an exact check."""

    exceeded: Kind | None
    seconds: float
    """Processor time in seconds that the check took."""


@dataclass(frozen=True, slots=True)
class _Status:
    threads: int
    seconds: float
    """Seconds of processor time, including the time of children that have ended."""
    resident: int
    """Bytes of resident memory, including shared pages."""

    @classmethod
    def parse(cls, text: str) -> "_Status":
        """Parse a line of /proc/PID/stat. The program name in the line can contain any character."""
        fields = text.rpartition(")")[2].split()
        return cls(
            threads=int(fields[17]),
            seconds=sum(map(int, fields[11:15])) / _TICKS,
            resident=int(fields[21]) * _PAGE,
        )


def _kill(first: int, held: int) -> None:
    """Kill the first process. The kernel then kills all the others. This may take a long time if there are hundreds."""
    with suppress(OSError):  # only root can raise its priority, and only root can have hundreds of processes
        os.sched_setscheduler(first, os.SCHED_RR, os.sched_param(1))
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(held, signal.SIGKILL)


def _read(path: str) -> str:
    """Return the file's text, or an empty string if its process has ended."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> int:
    """Return the number after the name at the start of a line."""
    line = next((line for line in text.splitlines() if line.startswith(name)), "")
    return int(line.split()[1]) if line else 0


def _in_memory(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * _INODE
