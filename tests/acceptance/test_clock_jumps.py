"""Clocks jump by an hour in the middle of a run.

If it is a worker's, the run's order, deadlines and limits don't notice. If it is the Temporal server's, work may have
to wait until the clock is right again, and nothing is lost or done twice.
"""

import asyncio
import platform
from pathlib import Path

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.stack import state
from loom.testing.harness import Addresses, harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, status, text
from loom.testing.stream import assert_whole, told
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable
from tests.process_clock import ProcessClock

PROGRAM = ("-P", "-c", "from loom.cli.main import main; main()")
SERVES_CLOCK_APP = (*PROGRAM, "worker", "--app", str(Path(__file__).parents[1] / "clock_app.py"))


@pytest.mark.slow
@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=["forward", "back"])
async def test_a_jump_of_a_worker_s_clock_changes_nothing_for_its_runs(killable: Killable, jump: float) -> None:
    failed: list[int] = []

    def reply(request: SeenRequest) -> Reply:
        if request.turn == 3 and not failed:
            failed.append(request.turn)
            return status(429, retry_after=1)
        if request.turn == 5:
            return text("done")
        return calls(ToolUse("bash", {"command": f"echo {request.turn} >> steps"}, f"c{request.turn}"))

    loom, model, workers = await killable(reply)
    await workers.start(SERVES_CLOCK_APP, JUMP=str(jump))
    run_id = await loom.start(permissions={"bash": "ask"}, budget={"seconds": 600})
    await loom.asked(run_id)

    (workers.folder / "jump").touch()

    async def jumped() -> bool:
        return bool((workers.folder / "jumped").exists())

    await eventually(jumped)
    await loom.client.approve(run_id, scope="run")
    # If the jump counted, this would take an hour, until the test's own limit.
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "done")
    assert (loom.workspace / "steps").read_text().split() == ["0", "1", "2", "3", "4"]
    assert len(model.requests) == 7
    events = await told(loom.client, run_id)
    assert_whole(events)
    assert [event.task.action for event in events].count(Action.TOOL_RESULT) == 5


@pytest.mark.skipif(platform.machine() != "x86_64", reason="ProcessClock writes instructions of x86-64")
@pytest.mark.parametrize("jump", [3600, pytest.param(-3600, marks=pytest.mark.slow)], ids=["forward", "back"])
async def test_a_jump_of_the_server_s_clock_loses_nothing(
    own_stack: tuple[Path, Addresses], workspace: Path, jump: int
) -> None:
    home, addresses = own_stack
    command = "echo begun >> begun; sleep 3; echo ended >> ended; echo all of it"
    first = {
        "ask": calls(ToolUse("write_file", {"path": "asked", "content": "approved"}, "w1")),
        "command": calls(ToolUse("bash", {"command": command}, "b1")),
        "talk": text("a long answer " * 10, chunks=40, delay=0.1),
        "wait": status(429, retry_after=3),
    }

    def reply(request: SeenRequest) -> Reply:
        task = str(request.messages[-1]["content"])
        return first.pop(task, text("ended")) if task == "wait" else text("ended") if request.turn else first[task]

    async with harness(addresses, workspace, reply) as (loom, model):
        asking, commanding, talking, waiting = [
            await loom.start(task, permissions={"bash": "allow"}) for task in ("ask", "command", "talk", "wait")
        ]
        await loom.asked(asking)

        async def has_begun() -> bool:
            return (workspace / "begun").exists() and "wait" not in first

        await eventually(has_begun)
        clock = ProcessClock(state.read(home).living()["temporal"].pid)
        clock.set(jump)
        await loom.client.approve(asking, "w1")
        ended = asyncio.gather(*map(loom.client.result, (asking, commanding, talking, waiting)))
        if jump < 0:  # this server hands out no work before its clock is again where it was
            await asyncio.sleep(5)
            assert not ended.done()
            clock.set(0)  # it may look for work only once a minute
        results = await asyncio.wait_for(ended, 150)

    assert [(result.status, result.turns, result.tool_calls) for result in results] == [
        (RunStatus.COMPLETED, 2, 1),
        (RunStatus.COMPLETED, 2, 1),
        (RunStatus.COMPLETED, 1, 0),
        (RunStatus.COMPLETED, 1, 0),
    ]
    assert [(workspace / name).read_text() for name in ("asked", "begun")] == ["approved", "begun\n"]
    answers = [str(request.messages[-1]["content"]) for request in model.requests if request.turn]
    told = ["all of it"]
    if jump > 0:  # the server has counted the hour as the command's time, unless the command ended before it looked
        told.append("did not come back in time")
    assert any(each in answer for each in told for answer in answers), answers
