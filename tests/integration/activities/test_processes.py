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
from loom.testing.waiting import eventually


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
import asyncio
from pathlib import Path
from loom.activities.adapters.sandbox.processes import kill_group, supervise

async def main():
    return await supervise(
        ["/bin/sh", "-c", "echo begun; exec sleep 300"],
        workspace=Path(),
        environment={},
        timeout=60,
        max_output=100,
        on_output=lambda text: print(text, end="", flush=True),
        kill=kill_group,
    )

print(asyncio.run(main()).limit)
"""


async def test_a_command_that_is_killed_because_its_worker_was_frozen_says_so(tmp_path: Path) -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUNS_A_COMMAND, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )

    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"begun\n"  # output is read after the command is registered
    [started] = [each for each in psutil.Process(worker.pid).children() if each.name() in ("sh", "sleep")]
    worker.send_signal(signal.SIGSTOP)

    async def is_killed() -> bool:
        return not is_alive(started)

    await eventually(is_killed)
    worker.send_signal(signal.SIGCONT)
    output, _ = await worker.communicate()

    assert output.decode().startswith("the command was killed because its worker did not run for some seconds")
