"""Stop commands whose worker no longer runs, although it isn't dead: it was frozen, or its machine swaps.

    worker ──beat──beat──       (stands still)            beat──beat──
    command ──────────────────▶ stopped after PAUSE ────▶ goes on
                                killed after LIMIT

While a worker stands still, its runs may end, and Temporal may give them to another worker. Its commands are processes
of their own, and must not take effect meanwhile. They therefore stand still with the worker, and go on with it. After
`LIMIT`, another attempt may take the place of theirs, so they are killed.

This module is also a standalone program, `python -I -S worker_beat.py LIMIT`, which needs only the standard library. A
worker starts one for all its commands. While a command runs, a thread of the worker writes to the program's standard
input four times a second. The program ends with the worker.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

INTERVAL: Final = 0.25
"""Seconds between beats."""
PAUSE: Final = 2.0
"""Seconds without a beat until the commands are stopped. Shorter than the lease of an attempt (`activities.leases`)."""
LIMIT: Final = 11.0
"""Seconds without a beat until the commands are killed. Most pauses of a machine are shorter. Shorter than the time
that another attempt waits for a worker that stands still, so that the command has ended before that attempt begins.
"""


class WorkerBeat:
    """Tells the program which commands run, and that this process still runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._commands: dict[int, float] = {}
        """The running process groups, and for how many seconds this process has stood still meanwhile, at most."""
        self._pipe: int | None = None
        self._beats = Event()
        self._last = 0.0

    @contextmanager
    def needed_by(self, group: int) -> Iterator[Callable[[], str]]:
        """Stop or kill the process group if this process stands still during the body. Yields a function that returns
        why the group was killed, or an empty text if it wasn't.
        """
        if sys.platform != "linux":
            yield lambda: ""
            return
        with self._lock:
            if not self._commands:
                self._last = monotonic()
            self._commands[group] = 0.0
            self._tell(f"+{group}\n")
        self._beats.set()
        try:
            yield lambda: why_killed(max(self._commands.get(group, 0.0), monotonic() - self._last))
        finally:
            with self._lock:
                del self._commands[group]
                self._tell(f"-{group}\n")
                if not self._commands:
                    self._beats.clear()

    def _tell(self, line: str) -> None:
        if self._pipe is None:
            self._pipe = _started()
            Thread(target=self._beat, name="loom-worker-beat", daemon=True).start()
        with suppress(BlockingIOError, BrokenPipeError):  # it was killed: commands then run without it
            os.write(self._pipe, line.encode())

    def _beat(self) -> None:
        pause = Event()
        while True:
            self._beats.wait()
            with self._lock:
                now = monotonic()
                for group, longest in self._commands.items():
                    self._commands[group] = max(longest, now - self._last)
                self._last = now
                self._tell("\n")
            pause.wait(INTERVAL)


def why_killed(stood_still: float) -> str:
    """Return why a command was killed whose worker has stood still for so many seconds, for the model. The text is
    empty if the worker soon went on.
    """
    if stood_still < LIMIT:
        return ""
    return (
        f"the command was stopped because its worker stood still for {stood_still:.0f} s. It may have taken effect in "
        "part: check what is there before you run it again"
    )


WORKER_BEAT: Final = WorkerBeat()
"""The beat of this process."""


def _started() -> int:
    """Start the program and return the pipe that it reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", __file__, str(LIMIT)],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (1, 2))],
            setsid=True,
        )
    finally:
        os.close(reading)
        os.close(null)
    return writing


def main(limit: float) -> None:
    """Read beats from standard input until the worker ends."""
    commands: set[int] = set()
    beats = select.poll()
    beats.register(0, select.POLLIN)
    silent, unfinished = 0.0, b""
    while True:
        # Count polls instead of reading a clock: a machine that was suspended gives the worker time to go on first.
        if not beats.poll(INTERVAL * 1000):
            silent += INTERVAL
            if due := due_signal(silent, limit):
                send(due, commands)
            continue
        data = os.read(0, 65536)
        if silent >= PAUSE:
            send(signal.SIGCONT if data else signal.SIGKILL, commands)
        if not data:
            return
        silent = 0.0
        *lines, unfinished = (unfinished + data).split(b"\n")
        for line in filter(None, lines):
            (commands.add if line.startswith(b"+") else commands.discard)(int(line[1:]))


def due_signal(silent: float, limit: float) -> signal.Signals | None:
    """Return the signal for the commands of a worker that hasn't been heard of for so many seconds."""
    if silent >= limit:
        return signal.SIGKILL
    return signal.SIGSTOP if silent >= PAUSE else None


def send(signum: signal.Signals, commands: set[int]) -> None:
    """Send the signal to all processes of the commands."""
    # A frozen worker hasn't reaped its commands, so their ids can't belong to other processes.
    for group in commands:
        family = []
        # The children of a process are found while it is stopped: it begins no others, and they don't lose it.
        for pid in _family(group):
            family.append(pid)
            _send(signal.SIGSTOP if signum is signal.SIGKILL else signum, pid)
        if signum is signal.SIGKILL:
            for pid in family:
                _send(signum, pid)


def _send(signum: signal.Signals, pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _family(group: int) -> Iterator[int]:
    """Yield the process group, as `os.kill` names it, and its leader's descendants. In a sandbox, they have groups of
    their own.
    """
    yield -group
    yield from _descendants(group)


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes that the process has started, and those that they have started."""
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text(encoding="ascii").split()):
                yield child
                yield from _descendants(child)


if __name__ == "__main__":
    main(float(sys.argv[1]))
