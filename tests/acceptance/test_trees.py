"""A tree of runs from outside: its workers are killed, and people use the command line."""

import json
from pathlib import Path

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_server import ToolUse, calls, hang, text
from loom.testing.stream import count, told
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable, Working
from tests.acceptance.test_command_line import command_line, new_id
from tests.trees import by_task, delegate

BASH = calls(ToolUse("bash", {"command": "echo ran >> notes.txt"}, "b1"))
APPROVED = {"bash": "allow"}


@pytest.mark.slow
async def test_a_tree_goes_on_after_its_worker_was_killed_and_repeats_nothing(
    killable: Killable, workspace: Path
) -> None:
    loom, model, workers = await killable(
        by_task(
            {
                "the root": [calls(delegate("work", "WORK", "c1", tools=["bash"])), text("all done")],
                "WORK": [BASH, hang(2), text("finished")],
            }
        )
    )
    worker = await workers.start()
    run_id = await loom.start("the root", permissions=APPROVED)
    await loom.asked(run_id)
    await loom.client.approve(run_id)

    async def speaking() -> bool | None:
        return len(model.requests) >= 3 or None

    await eventually(speaking)
    await workers.kill(worker)
    # The script answers by turn, so the call that was lost is hung up on again until the model says something else.
    model._script = by_task({"the root": [calls(), text("all done")], "WORK": [BASH, text("finished")]})
    await workers.start()
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "all done")
    assert [(child["status"], child["turn"]) for child in result.children] == [("completed", 2)]
    assert (workspace / "notes.txt").read_text() == "ran\n"
    events = await told(loom.client, run_id)
    assert [event.offset for event in events] == list(range(1, len(events) + 1))
    assert (count(events, Action.START), count(events, Action.COMPLETE)) == (2, 2)
    assert events[-1].task.run_id == run_id


@pytest.mark.slow
async def test_asks_of_sub_agents_are_shown_and_answered_at_the_root(working: Working, workspace: Path) -> None:
    loom, _ = await working(
        by_task(
            {
                "the root": [calls(delegate("tidy up", "WORK", "c1", tools=["bash"])), text("all done")],
                "WORK": [BASH, text("finished")],
            }
        )
    )
    cli, run_id = command_line(loom), new_id()
    await cli("run", "the root", "--id", run_id, "--workspace", str(workspace), "--detach")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]

    shown = (await cli("status", run_id)).out
    assert "sub-agent" in shown
    assert f"loom approve {run_id} {ask['call_id']}" in shown
    assert "└ default: tidy up · waiting for approval · 1 turn · waiting on approval: bash" in shown
    roots = [run["run_id"] for run in (await cli("list", "--json")).json]
    tree = [run["run_id"] for run in (await cli("list", "--tree", run_id, "--json")).json]
    assert (run_id in roots, ask["run_id"] in roots) == (True, False)
    assert set(tree) == {run_id, ask["run_id"]}

    assert (await cli("approve", run_id, ask["call_id"], "--json")).json["accepted"]
    assert (await cli("result", run_id, "--json")).json["status"] == "completed"
    told_live = (await cli("watch", run_id)).out
    assert "⤷ default: tidy up  (d1-1)" in told_live
    assert "  d1-1 │ finished" in told_live
    ended = (await cli("status", run_id, "--json")).json
    assert [child["status"] for child in ended["children"]] == ["completed"]
    lines = [json.loads(line) for line in (await cli("events", run_id, "--json")).out.splitlines()]
    assert {line["run_id"] for line in lines} == {run_id, ask["run_id"]}
    assert (workspace / "notes.txt").read_text() == "ran\n"
