"""People and a tree of runs: asks that surface at the root, abort, pause, rules that reach down."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from loom.domain.core.errors import RefusedError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunStatus
from loom.testing.model_server import Script, ToolUse, calls, hang, text
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

BASH = calls(ToolUse("bash", {"command": "echo deep > deep.txt"}, "b1"))


def three_levels(lowest: list[Any]) -> Script:
    """A root, its child, its grandchild, and below that one that does the work."""
    down = ["delegate_task", "bash", "read_file"]
    return by_task(
        {
            "LEVEL0": [calls(delegate("one", "LEVEL1", "c0", tools=down)), text("top")],
            "LEVEL1": [calls(delegate("two", "LEVEL2", "c1", tools=down)), text("middle")],
            "LEVEL2": [calls(delegate("three", "LEVEL3", "c2", tools=["bash"])), text("low")],
            "LEVEL3": [*lowest, text("lowest")],
        }
    )


async def test_an_ask_three_levels_down_is_answered_at_the_root(working: Working, workspace: Path) -> None:
    loom, _ = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0", permissions={"bash": "allow"})

    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    status = await loom.client.status(run_id)
    assert (ask["tool"], ask["depth"], ask["arguments"]) == ("bash", 3, {"command": "echo deep > deep.txt"})
    assert (status["status"], status["waiting_on"]) == ("waiting_for_approval", "approval: bash of sub-agent default")
    assert ask["run_id"].startswith(f"{run_id}/d1-1-")
    below = ask["run_id"].removeprefix(f"{run_id}/")
    assert ask["call_id"] == f"{below}/b1"

    receipt = await loom.client.approve(run_id, digest=ask["digest"], by="ann")

    assert receipt["accepted"]
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "deep.txt").read_text() == "deep\n"


async def test_an_answer_at_the_child_itself_clears_the_ask_at_the_root(working: Working) -> None:
    loom, model = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]

    await loom.client.deny(ask["run_id"], "b1", reason="not here")

    await loom.client.result(run_id)
    assert any("not here" in str(request.messages[-1]["content"]) for request in model.requests)


async def test_asks_of_several_children_are_told_apart_and_an_answer_is_bound_to_one(
    working: Working, workspace: Path
) -> None:
    def writes(name: str) -> list[Any]:
        return [calls(ToolUse("bash", {"command": f"touch {name}"}, "b1")), text(f"{name} done")]

    two = [delegate(name, f"make {name}", f"c-{name}", tools=["bash"]) for name in ("left", "right")]
    loom, _ = await working(
        by_task({"the root": [calls(*two), text("both")], "make left": writes("left"), "make right": writes("right")})
    )
    run_id = await loom.start("the root")
    asks = {ask["arguments"]["command"]: ask for ask in (await loom.asked(run_id, 2))["pending_approvals"]}
    left, right = asks["touch left"], asks["touch right"]
    waits = (await loom.client.status(run_id))["waiting_on"]
    assert waits == "approval: bash of sub-agent default (2 times)"

    with pytest.raises(RefusedError, match="2 calls are waiting"):
        await loom.client.approve(run_id)
    with pytest.raises(RefusedError, match="digest"):
        await loom.client.approve(run_id, left["call_id"], digest=right["digest"])
    await loom.client.approve(run_id, left["call_id"], digest=left["digest"])
    with pytest.raises(RefusedError, match="is not waiting"):
        await loom.client.approve(run_id, left["call_id"])
    await loom.client.deny(run_id, right["call_id"], reason="no")

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert sorted(path.name for path in workspace.iterdir()) == ["left"]


async def test_an_abort_ends_the_whole_tree(working: Working) -> None:
    loom, _ = await working(three_levels([hang()]), model_timeout=3600)
    run_id = await loom.start("LEVEL0")

    async def deep() -> list[str] | None:
        below = await loom.below(run_id)
        return below if len(below) == 3 else None

    below = await eventually(deep)
    await loom.client.abort(run_id, reason="enough", by="ann")
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.ABORTED
    assert [child["status"] for child in result.children] == ["aborted"]
    for each in below:
        described = await loom.client.temporal.get_workflow_handle(each).describe()
        assert described.status is WorkflowExecutionStatus.COMPLETED
        assert (await loom.client.result(each)).status is RunStatus.ABORTED


async def test_cancelling_the_root_through_temporal_is_an_abort_of_the_tree(working: Working) -> None:
    loom, _ = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0")
    await loom.asked(run_id)

    await loom.client.temporal.get_workflow_handle(run_id).cancel()

    result = await loom.client.result(run_id)
    assert (result.status, [child["status"] for child in result.children]) == (RunStatus.ABORTED, ["aborted"])


async def test_a_child_that_is_terminated_is_a_result_and_its_parent_goes_on(working: Working) -> None:
    loom, _ = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]

    await loom.client.temporal.get_workflow_handle(ask["run_id"]).terminate("gone")

    result = await loom.client.result(run_id)
    assert (result.status, result.output) == (RunStatus.COMPLETED, "top")


async def test_pausing_the_root_holds_the_tree_and_resuming_lets_it_go_on(working: Working, workspace: Path) -> None:
    loom, _ = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0", permissions={"bash": "allow"})
    (ask,) = (await loom.asked(run_id))["pending_approvals"]

    await loom.client.pause(run_id, by="ann")
    await loom.until(ask["run_id"], lambda status: status["status"] == "paused")
    await loom.client.approve(run_id, by="ann")
    await loom.until(ask["run_id"], lambda status: not status["pending_approvals"])
    assert not (workspace / "deep.txt").exists()

    await loom.client.resume(run_id, by="ann")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "deep.txt").exists()


async def test_a_deny_above_wins_over_what_a_child_may(working: Working, workspace: Path) -> None:
    loom, model = await working(three_levels([BASH]), app="tests.delegation_app:app")

    result = await loom.run("LEVEL0", permissions={"bash": "deny"})

    assert result.status is RunStatus.COMPLETED
    assert any("Not permitted" in str(request.messages[-1]["content"]) for request in model.requests)
    assert not (workspace / "deep.txt").exists()


async def test_an_agent_that_may_more_is_still_asked_about_as_its_parent_would_be(
    working: Working, workspace: Path
) -> None:
    write = calls(ToolUse("write_file", {"path": "out.txt", "content": "x"}, "w1"))
    script = by_task(
        {"the root": [calls(delegate("w", "write it", agent="writer")), text("ok")], "write it": [write, text("done")]}
    )
    loom, _ = await working(script, app="tests.delegation_app:app")
    run_id = await loom.start("the root", permissions={"write_file": "ask"})

    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert (ask["agent"], ask["rule"]) == ("writer", "write_file")
    await loom.client.approve(run_id, scope="run")

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").exists()


async def test_new_rules_at_the_root_reach_children_that_run(working: Working, workspace: Path) -> None:
    loom, _ = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0")
    await loom.asked(run_id)

    await loom.client.set_permissions(run_id, {"bash": "deny"})

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert not (workspace / "deep.txt").exists()


@pytest.mark.parametrize("payload", [None, "x", {"run_id": "x"}, {"above": 3}, {"run_id": "x", "status": "running"}])
async def test_letters_that_no_run_has_written_are_ignored(working: Working, payload: JsonObject) -> None:
    loom, _ = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0")
    await loom.asked(run_id)
    handle = loom.client.temporal.get_workflow_handle(run_id)

    await handle.signal("child_report", payload)
    await handle.signal("set_ancestry", payload)

    assert len((await loom.asked(run_id))["pending_approvals"]) == 1
    await loom.client.deny(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED


@pytest.mark.slow
async def test_a_child_that_was_paused_itself_does_not_go_on_with_the_tree(working: Working) -> None:
    loom, _ = await working(three_levels([BASH]))
    run_id = await loom.start("LEVEL0")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    below = await loom.below(run_id)
    await loom.client.pause(below[1], by="ann")
    await loom.client.pause(run_id, by="bob")
    await loom.until(below[0], lambda status: status["status"] == "paused")

    await loom.client.resume(run_id, by="bob")

    await loom.until(below[0], lambda status: status["waiting_on"] == "approval: bash of sub-agent default")
    assert (await loom.client.status(below[1]))["status"] == "paused"
    await loom.client.resume(below[1], by="ann")
    await loom.until(ask["run_id"], lambda status: status["status"] == "waiting_for_approval")
    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
