"""A machine on which tests have a hard time: others compute beside them, and it stands still now and then."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final
from uuid import uuid4

import psutil

_MARK: Final = "TESTS_OF_ROUND"
"""The environment variable by which a round's processes are known, servers that have left their parent among them."""


@contextmanager
def busy_loops(count: int = 2) -> Iterator[None]:
    """Processes that compute as long as the body runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


@contextmanager
def freezing(*, every: tuple[float, float], seed: int = 1) -> Iterator[None]:
    """Freeze everything that is started in the body, together, for 0.3 to 0.7 seconds each time.

    `every` is the time between two pauses in seconds, at least and at most.
    """
    chance, over, mark = random.Random(seed), Event(), uuid4().hex

    def freeze() -> None:
        while not over.wait(chance.uniform(*every)):
            marked = list(_marked(mark))
            try:
                _each(marked, psutil.Process.suspend)
                time.sleep(chance.uniform(0.3, 0.7))
            finally:
                _each(reversed(marked), psutil.Process.resume)  # or a shell would see that its child is stopped

    thread = Thread(target=freeze)
    os.environ[_MARK] = mark
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        del os.environ[_MARK]


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_marked = process.pid != os.getpid() and process.environ().get(_MARK) == mark
            if is_marked and process.status() != psutil.STATUS_STOPPED:  # a test may have frozen it itself
                yield process


def _each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            do(process)
