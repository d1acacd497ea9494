"""A worker stands still, as in a VM's pause, and goes on: its command goes on with it, and is run once."""

import asyncio
import signal
from pathlib import Path
from typing import Final

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable
from tests.databases import rows

PERMISSIONS: Final = {"bash": "allow", "python": "allow"}
WAITS: Final = "echo begun >> begun; until [ -e go ]; do sleep 0.1; done; echo ended >> ended; echo all of it"
TAKES_TIME: Final = {
    "bash": {"command": "echo begun >> begun; for i in 1 2 3 4 5 6 7 8; do sleep 1; done; echo all of it"},
    "python": {"code": "import time\nprint('begun', file=open('begun', 'a'))\ntime.sleep(8)\nprint('all of it')"},
}
BEGUN: Final = "begun\n"


async def test_a_worker_that_stands_still_until_its_lease_ends_keeps_its_command(
    killable: Killable, workspace: Path
) -> None:
    loom, model, workers = await killable(script([calls(ToolUse("bash", {"command": WAITS}, "b1")), text("I see")]))
    worker = await workers.start()
    run_id = await loom.start(permissions=PERMISSIONS)
    await _exists(workspace / "begun")

    with workers.frozen(worker):
        await _lease_ended(loom, run_id)
    (workspace / "go").touch()
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.tool_calls) == (RunStatus.COMPLETED, "I see", 1)
    assert model.requests[1].messages[-1]["content"] == "all of it"
    assert [(workspace / name).read_text() for name in ("begun", "ended")] == [BEGUN, "ended\n"]
    assert len(model.requests) == 2


@pytest.mark.slow
@pytest.mark.parametrize("tool", TAKES_TIME)
@pytest.mark.parametrize("seconds", [0.5, 3, 10])
async def test_a_command_outlasts_a_pause_of_its_worker_beside_another_worker(
    killable: Killable, workspace: Path, tool: str, seconds: float
) -> None:
    loom, model, workers = await killable(script([calls(ToolUse(tool, TAKES_TIME[tool], "b1")), text("I see")]))
    worker = await workers.start()
    run_id = await loom.start(permissions=PERMISSIONS)
    await _exists(workspace / "begun")
    await workers.start()

    with workers.frozen(worker):
        await asyncio.sleep(seconds)  # the pause itself
    assert (await loom.client.result(run_id)).output == "I see"

    assert model.requests[1].messages[-1]["content"] == "all of it"
    assert (workspace / "begun").read_text() == BEGUN


@pytest.mark.slow
@pytest.mark.parametrize("tool", TAKES_TIME)
async def test_a_command_that_is_stopped_because_its_worker_does_not_come_back_says_so(
    killable: Killable, workspace: Path, tool: str
) -> None:
    loom, model, workers = await killable(script([calls(ToolUse(tool, TAKES_TIME[tool], "b1")), text("I see")]))
    worker = await workers.start()
    run_id = await loom.start(permissions=PERMISSIONS)
    await _exists(workspace / "begun")
    await workers.start()

    worker.send_signal(signal.SIGSTOP)
    await asyncio.sleep(30)  # the pause itself
    worker.send_signal(signal.SIGCONT)
    assert (await loom.client.result(run_id)).output == "I see"

    said = model.requests[1].messages[-1]["content"]
    assert "worker stood still for " in said
    assert "stopped" in said
    assert "may have taken effect in" in said
    assert (workspace / "begun").read_text() == BEGUN


async def _exists(path: Path) -> None:
    async def look() -> bool:
        return path.exists()

    await eventually(look)


async def _lease_ended(loom: Harness, run_id: str) -> None:
    async def look() -> bool:
        # A slow model call has a lease, too, but its result is stored.
        ended = "SELECT alive_until < now() FROM loom_effects WHERE run_id = %s AND result IS NULL"
        return await rows(str(loom.settings.database_url), ended, (run_id,)) == [(True,)]

    await eventually(look)
