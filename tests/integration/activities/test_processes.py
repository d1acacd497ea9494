"""What is left of a program whose caller is canceled or frozen."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from loom.activities.adapters.sandbox.processes import kill_group, supervise
from loom.activities.adapters.sandbox.worker_beat import LIMIT
from loom.testing.waiting import eventually
from tests.processes import stands_still


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


@pytest.mark.parametrize("times", [1, 2])
async def test_a_caller_that_is_canceled_while_the_program_starts_leaves_no_process(tmp_path: Path, times: int) -> None:
    before = {each.pid for each in psutil.Process().children()}
    running = asyncio.ensure_future(
        supervise(
            ["bash", "-c", "sleep 300 & sleep 300"],
            workspace=tmp_path,
            environment={"PATH": os.environ["PATH"]},
            timeout=60,
            max_output=100,
            on_output=lambda _: None,
            kill=kill_group,
        )
    )
    while not (begun := [each for each in psutil.Process().children() if each.pid not in before]):
        await asyncio.sleep(0)
    while len(family := [*begun, *begun[0].children()]) < 3:
        time.sleep(0.01)  # the event loop must not get beyond the start
    for _ in range(times):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running

    async def gone() -> bool:
        return not any(map(is_alive, family))

    await eventually(gone)


RUNS_A_COMMAND = """
import asyncio, sys
from pathlib import Path
from loom.activities.adapters.sandbox import worker_beat
from loom.activities.adapters.sandbox.processes import kill_group, supervise
from loom.activities.adapters.sandbox.unsandboxed import Unsandboxed

worker_beat.LIMIT = float(sys.argv[1])
PRINTED = dict(timeout=60, max_output=100, on_output=lambda text: print(text, end="", flush=True))

async def command():
    # The sleep is in a group of its own, as in a sandbox.
    line = "echo begun; setsid -w sh -c 'until [ -e go ]; do sleep 0.1; done'; echo ended"
    return await supervise(["/bin/sh", "-c", line], workspace=Path(), environment={}, kill=kill_group, **PRINTED)

async def session():
    program = "echo begun; until [ -e go ]; do sleep 0.1; done; echo ended; echo 0 >&$0; read forever"
    begun = await Unsandboxed().begin(["bash", "-c", program], workspace=Path.cwd())
    try:
        return await begun.call(b"", **PRINTED)
    finally:
        await begun.close()

finished = asyncio.run(globals()[sys.argv[2]]())
print((finished.exit_code, finished.timed_out, finished.limit))
"""
KINDS = pytest.mark.parametrize("kind", ["command", "session"])


async def begun_in_a_worker(folder: Path, kind: str, limit: float) -> asyncio.subprocess.Process:
    """A worker whose command has begun. It goes on when there is a file `go`."""
    arguments = (sys.executable, "-c", RUNS_A_COMMAND, str(limit), kind)
    worker = await asyncio.create_subprocess_exec(*arguments, cwd=folder, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"begun\n"  # output is read after the command is registered
    return worker


def shells_of(worker: asyncio.subprocess.Process) -> list[psutil.Process]:
    return [each for each in psutil.Process(worker.pid).children(recursive=True) if each.name() in ("sh", "bash")]


@KINDS
async def test_a_command_stands_still_with_its_worker_and_goes_on_with_it(tmp_path: Path, kind: str) -> None:
    worker = await begun_in_a_worker(tmp_path, kind, 10 * LIMIT)
    shells = shells_of(worker)
    worker.send_signal(signal.SIGSTOP)

    async def are_stopped() -> bool:
        return all(map(stands_still, shells))

    await eventually(are_stopped)
    worker.send_signal(signal.SIGCONT)
    (tmp_path / "go").touch()
    output, _ = await worker.communicate()
    assert output.decode() == "ended\n(0, False, '')\n"


@KINDS
async def test_a_command_that_is_killed_because_its_worker_was_frozen_says_so(tmp_path: Path, kind: str) -> None:
    worker = await begun_in_a_worker(tmp_path, kind, 0.5)
    shells = shells_of(worker)
    worker.send_signal(signal.SIGSTOP)

    async def are_killed() -> bool:
        return not any(map(is_alive, shells))

    await eventually(are_killed)
    worker.send_signal(signal.SIGCONT)
    output, _ = await worker.communicate()
    assert output.decode().startswith("(-9, False, 'the command was stopped because its worker stood still for ")


async def test_a_command_that_stands_still_ends_if_its_worker_is_killed(tmp_path: Path) -> None:
    worker = await begun_in_a_worker(tmp_path, "command", LIMIT)
    shells = shells_of(worker)
    worker.send_signal(signal.SIGSTOP)

    async def are_stopped() -> bool:
        return all(map(stands_still, shells))

    await eventually(are_stopped)
    worker.kill()

    async def are_gone() -> bool:
        return not any(map(is_alive, shells))

    await eventually(are_gone)
