"""What ends with a process of the embedded stack."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loom.stack.processes import Running, end, kill_process_group, spawn, wait_until
from loom.stack.state import Identity, of_pid

PARENT = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[Running, Identity]]:
    """A process, and the child that it has started."""
    log = tmp_path / "log"
    parent = spawn([sys.executable, "-c", PARENT], log=log, env=os.environ)
    assert wait_until(lambda: log.read_text().endswith("\n"), seconds=30)
    child = of_pid(int(log.read_text()))
    yield parent, child
    for each in (parent.identity, child):
        if each.alive():
            os.kill(each.pid, signal.SIGKILL)
    assert wait_until(lambda: not parent.alive(), seconds=30)


def die(parent: Running) -> None:
    os.kill(parent.identity.pid, signal.SIGKILL)
    assert wait_until(lambda: not parent.alive(), seconds=30)


def test_what_a_killed_process_leaves_behind_is_killed(family: tuple[Running, Identity]) -> None:
    parent, child = family
    die(parent)
    assert child.alive()
    kill_process_group(parent)
    assert not child.alive()


def test_so_is_what_an_adopted_process_leaves_that_nobody_has_waited_for(family: tuple[Running, Identity]) -> None:
    parent, child = family
    adopted = Running(identity=parent.identity)
    os.kill(parent.identity.pid, signal.SIGKILL)
    assert wait_until(lambda: not adopted.alive(), seconds=30)
    assert psutil.Process(parent.identity.pid).status() == psutil.STATUS_ZOMBIE
    kill_process_group(adopted)
    assert not child.alive()


def test_a_process_ends_with_its_children(family: tuple[Running, Identity]) -> None:
    parent, child = family
    end("worker", parent)
    assert not parent.alive()
    assert not child.alive()


def test_a_running_process_keeps_its_children(family: tuple[Running, Identity]) -> None:
    parent, child = family
    kill_process_group(parent)
    assert parent.alive()
    assert child.alive()


def test_what_is_recorded_of_a_process_that_has_long_exited_ends_nothing(family: tuple[Running, Identity]) -> None:
    parent, child = family
    die(parent)
    end("worker", Running(identity=parent.identity))
    assert child.alive()
