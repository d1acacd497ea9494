"""A worker's clock jumps by an hour in the middle of a run: the run's order, deadlines and limits don't notice."""

from pathlib import Path

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from tests.acceptance.conftest import Killable
from tests.model_server import Reply, SeenRequest, ToolUse, calls, status, text
from tests.stream import assert_whole, told
from tests.waiting import eventually

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
