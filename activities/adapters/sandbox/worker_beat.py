"""End commands whose worker no longer runs, although it isn't dead: it was frozen, or its machine can't go on.

Temporal gives such a worker up, and its runs continue elsewhere or end. Its commands are processes of their own, which
would still take effect later.

This module is also a standalone program, `python -I -S worker_beat.py`, which needs only the standard library. A worker
starts one for all its commands. While a command runs, a thread of the worker writes to the program's standard input
four times a second. If nothing arrives during `LIMIT`, the program kills the commands. It ends with the worker.
"""

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

INTERVAL: Final = 0.25
"""Seconds between beats."""
LIMIT: Final = 2.0
"""Seconds without a beat. Shorter than the lease of an attempt, so that the command has ended before another attempt
begins, and long enough that a busy machine ends no command.
"""


class WorkerBeat:
    """Tells the program which commands run, and that this process still runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._commands: set[int] = set()
        self._pipe: int | None = None
        self._beats = Event()
        self._last = 0.0
        self._gaps = 0

    @contextmanager
    def needed_by(self, group: int) -> Iterator[Callable[[], bool]]:
        """Kill the process group if this process stops running during the body. Yields a function that returns whether
        it has stopped for so long.
        """
        if sys.platform != "linux":
            yield lambda: False
            return
        with self._lock:
            if not self._commands:
                self._last = monotonic()
            gaps = self._gaps
            self._commands.add(group)
            self._tell(f"+{group}\n")
        self._beats.set()
        try:
            yield lambda: self._gaps > gaps or monotonic() - self._last >= LIMIT
        finally:
            with self._lock:
                self._commands.discard(group)
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
                self._gaps += now - self._last >= LIMIT
                self._last = now
                self._tell("\n")
            pause.wait(INTERVAL)


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
            [sys.executable, "-I", "-S", __file__],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0), *((os.POSIX_SPAWN_DUP2, null, fd) for fd in (1, 2))],
            setsid=True,
        )
    finally:
        os.close(reading)
        os.close(null)
    return writing


def main() -> None:
    """Read beats from standard input until the worker ends."""
    commands: set[int] = set()
    beats = select.poll()
    beats.register(0, select.POLLIN)
    silent, unfinished = 0.0, b""
    while True:
        # Count polls instead of reading a clock: a machine that was suspended gives the worker time to go on first.
        if not beats.poll(INTERVAL * 1000):
            silent += INTERVAL
            if silent >= LIMIT:
                _kill(commands)
            continue
        if not (data := os.read(0, 65536)):
            return
        silent = 0.0
        *lines, unfinished = (unfinished + data).split(b"\n")
        for line in filter(None, lines):
            (commands.add if line.startswith(b"+") else commands.discard)(int(line[1:]))


def _kill(commands: set[int]) -> None:
    # A frozen worker hasn't reaped its commands, so their ids can't belong to other processes.
    for group in commands:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
