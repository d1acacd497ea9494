"""A spare worker: a process that has imported what a worker needs, and waits until it is needed.

    supervisor                    spare
    load ───────────── spawn ───▶ imports, and waits at its standard input
    become_worker ──── order ───▶ takes its environment and its log, and continues as the worker
    discard ────────── kill ────▶ ends
    ends in any way ── EOF ─────▶ ends

A worker spends nearly all of its start on imports. The order contains what the supervisor didn't know when it
loaded the spare, such as addresses.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loom.stack.processes import Running
from loom.stack.state import of_pid

_MARK: Final = "_LOOM_SPARE"
"""The environment variable that makes a worker's command a spare."""
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_SITE_PACKAGES: Final = tuple(Path(each) for each in sys.path if each.endswith(("site-packages", "dist-packages")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spare:
    """A spare worker as its supervisor sees it."""

    child: "subprocess.Popen[bytes]"
    packages: tuple[int, ...]
    """When packages had last been installed or removed before it was loaded."""

    @classmethod
    def load(cls, command: Sequence[str]) -> "Spare | None":
        """Start this worker command as a spare, with this process's environment. Return None if it can't be started."""
        packages = _packages()
        with suppress(OSError):
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1", _MARK: "1"},
                start_new_session=True,
                bufsize=0,
            )
            return cls(child=child, packages=packages)
        return None

    def become_worker(self, env: Mapping[str, str], log: Path) -> Running | None:
        """Make the spare the worker. If it isn't ready yet, it first finishes its imports.

        Return None if the spare can't be the worker: it has ended, packages were installed since it was loaded, or the
        environment is larger than a pipe.
        """
        order = json.dumps({"environment": dict(env), "log": str(log)}).encode()
        with suppress(OSError):  # whatever prevents it, a new process can still be started
            before = log.stat().st_size if log.exists() else 0
            if self.packages == _packages() and self.child.poll() is None and self._sent(order):
                return Running(identity=of_pid(self.child.pid), child=self.child, logs_from=before, since=time.time())
        self.discard()
        return None

    def discard(self) -> None:
        """End the spare. It has no work to lose."""
        self.child.kill()
        self.child.wait()
        if self.child.stdin is not None:
            self.child.stdin.close()

    def _sent(self, order: bytes) -> bool:
        """Send the order without waiting for the spare to read it."""
        if (pipe := self.child.stdin) is None:
            return False
        with pipe, suppress(BrokenPipeError):
            os.set_blocking(pipe.fileno(), False)
            return pipe.write(order) == len(order)
        return False


def is_spare() -> bool:
    """Return whether this process was started as a spare."""
    return _MARK in os.environ


def await_order() -> bool:
    """Wait for the order to become the worker, and carry it out. Return False if the supervisor has ended instead."""
    with _expendable():
        given = sys.stdin.buffer.read()
    try:
        order = json.loads(given)
    except ValueError:  # nothing, or a part of an order
        return False
    os.environ.clear()
    os.environ.update(order["environment"])
    with Path(os.devnull).open("rb") as nothing, Path(order["log"]).open("ab") as output:
        for stream, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(stream.fileno(), number)
    importlib.invalidate_caches()  # the app's folder may have changed
    return True


@contextmanager
def _expendable() -> Iterator[None]:
    """If memory runs out in this block, the kernel ends this process before others."""
    before = None
    with suppress(OSError):  # some containers don't allow it
        before = _OOM_SCORE.read_text()
        _OOM_SCORE.write_text("1000")
    try:
        yield
    finally:
        with suppress(OSError):
            if before is not None:
                _OOM_SCORE.write_text(before)


def _packages() -> tuple[int, ...]:
    """Return when packages were last installed or removed. A spare that was loaded earlier has the old modules."""
    return tuple(folder.stat().st_mtime_ns for folder in _SITE_PACKAGES if folder.exists())
