"""Continue-as-new while sub-agents run: they go on, and whoever waits for them hears of their end."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.testing import ActivityEnvironment

from loom.activities.adapters.temporal.child_runs import TemporalChildRuns
from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.child_runs import ChildRuns
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.history.past_turns import ChildRun
from loom.domain.tree.signals import LOST, TURNS_BETWEEN_REPORTS
from loom.testing.harness import Harness
from loom.testing.model_server import Script, ToolUse, calls, text, turns
from loom.testing.stream import count, told
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

NAMES = ("left", "middle", "right")
BASH = calls(ToolUse("bash", {"command": "true"}, "b1"))
OFTEN = {"rotate_after_events": 100}


def three_that_ask() -> Script:
    """Three sub-agents at once, each of which asks before it answers."""
    work = [delegate(name, f"work on the {name}", f"c-{name}", tools=["bash"]) for name in NAMES]
    below = {f"the {name}": [BASH, text(f"{name} done")] for name in NAMES}
    return by_task({"the root": [calls(*work), text("all done")], **below})


async def rotated(loom: Harness, run_id: str, *, times: int = 1) -> None:
    """Send messages until the run has continued as new so often."""
    handle, said = (
        loom.client.temporal.get_workflow_handle(run_id),
        (await loom.client.status(run_id))["queued_messages"] or 0,
    )
    seen = {(await handle.describe()).run_id}
    while len(seen) <= times:
        await loom.client.send(run_id, f"message {(said := said + 1)}")
        await loom.until(run_id, lambda status: status["queued_messages"] == said)
        seen.add((await handle.describe()).run_id)
        assert said < 400


async def waiting_below(loom: Harness, **request: Any) -> str:
    """A run that is in its second execution, while its three sub-agents ask."""
    run_id = await loom.start("the root", **request)
    await loom.asked(run_id, len(NAMES))
    await rotated(loom, run_id)
    return run_id


@pytest.mark.slow
async def test_a_run_continues_as_new_while_three_sub_agents_run(working: Working) -> None:
    loom, model = await working(three_that_ask(), **OFTEN)
    run_id = await waiting_below(loom)
    await rotated(loom, run_id, times=2)
    for ask in (await loom.asked(run_id, len(NAMES)))["pending_approvals"]:
        await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"])
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "all done")
    assert [(child["status"], child["turn"]) for child in result.children] == [("completed", 2)] * 3
    results = [message["content"] for message in model.requests[-1].messages if message["role"] == "tool"]
    assert all(f"{name} done" in content for name, content in zip(NAMES, results, strict=True))
    assert len(model.requests) == 2 + 2 * len(NAMES), "no sub-agent began anew"
    histories = await loom.histories(run_id)
    assert len(histories) >= 4
    # A waiting run counts its requests, and the events of telling its watchers come on top.
    assert max(len(history.events) for history in histories) < 2.5 * OFTEN["rotate_after_events"]
    for child in await loom.below(run_id):
        (history,) = await loom.histories(child)
        assert not cancelled(history)
    events = [event for event in await told(loom.client, run_id) if event.task.run_id == run_id]
    assert [count(events, action) for action in (Action.START, Action.TOOL_RESULT, Action.COMPLETE)] == [1, 3, 1]
    records = await TemporalPasts(loom.client.temporal).records(run_id)
    known = [record.result.output for record in records if isinstance(record, ChildRun)]
    assert sorted(known) == sorted(f"{name} done" for name in NAMES)


@pytest.mark.slow
async def test_sub_agents_of_an_earlier_execution_are_held_and_aborted(working: Working) -> None:
    loom, _ = await working(three_that_ask(), **OFTEN)
    run_id = await waiting_below(loom)
    children = await loom.below(run_id)

    await loom.client.pause(run_id)
    for child in children:
        await loom.until(child, lambda status: status["status"] == "paused")
    await rotated(loom, run_id)
    await loom.client.abort(run_id, reason="enough")
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.ABORTED
    assert [child["status"] for child in result.children] == ["aborted"] * 3
    assert result.usage["model_calls"] == 1 + len(NAMES), "what the sub-agents used is counted"


@pytest.mark.slow
async def test_a_sub_agent_of_an_earlier_execution_that_is_terminated_is_a_result(working: Working) -> None:
    loom, _ = await working(three_that_ask(), **OFTEN)
    run_id = await waiting_below(loom)

    await asyncio.gather(
        *(loom.client.temporal.get_workflow_handle(child).terminate("gone") for child in await loom.below(run_id))
    )
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "all done")
    assert [child["status"] for child in result.children] == ["failed"] * 3


@pytest.mark.parametrize("rotations", [0, 1])
async def test_a_sub_agent_ends_when_it_finds_that_its_parent_was_terminated(working: Working, rotations: int) -> None:
    loom, _ = await working(three_that_ask(), **OFTEN)
    run_id = await loom.start("the root")
    await loom.asked(run_id, len(NAMES))
    await rotated(loom, run_id, times=rotations)
    child = (await loom.below(run_id))[0]

    await loom.client.temporal.get_workflow_handle(run_id).terminate("gone")
    await loom.client.approve(child, "b1")

    result = await loom.client.result(child)
    assert (result.status, result.output) == (RunStatus.ABORTED, "")
    assert result.error is not None
    assert LOST in str(result.error.context)


@pytest.mark.slow
async def test_upkeep_aborts_a_sub_agent_that_waits_for_a_person_without_a_parent(working: Working) -> None:
    loom, _ = await working(three_that_ask(), **OFTEN)
    lost, found = [await waiting_below(loom) for _ in range(2)]
    children = ChildRuns(TemporalChildRuns(loom.client.temporal, loom.settings.task_queue))
    orphans = await loom.below(lost)
    await loom.client.temporal.get_workflow_handle(lost).terminate("gone")

    async def is_seen() -> bool:  # the server's list of runs can be some seconds old
        return await ActivityEnvironment().run(children.abort_orphans) == len(NAMES)

    await eventually(is_seen)
    for orphan in orphans:
        assert (await loom.client.result(orphan)).status is RunStatus.ABORTED
    assert len((await loom.client.status(found))["pending_approvals"]) == len(NAMES)
    await loom.client.abort(found)
    await loom.client.result(found)


async def test_a_sub_agent_that_asks_nothing_reports_regularly_and_so_finds_its_parent_gone(working: Working) -> None:
    many = 3 * TURNS_BETWEEN_REPORTS
    root = [calls(delegate("long", "long work", "c1", tools=["list_dir"])), text("done")]
    listing = turns(many, "list_dir", {"path": "."})
    whole = by_task({"the root": root})
    loom, model = await working(lambda seen: listing(seen) if "long work" in str(seen.messages) else whole(seen))
    run_id = await loom.start("the root")

    async def has_begun() -> bool:
        return len(model.requests) > 2

    await eventually(has_begun)
    (child,) = await loom.below(run_id)
    await loom.client.temporal.get_workflow_handle(run_id).terminate("gone")

    result = await loom.client.result(child)
    assert (result.status, result.turns <= 2 * TURNS_BETWEEN_REPORTS) == (RunStatus.ABORTED, True)


async def test_the_status_of_a_parent_follows_the_turns_of_a_long_sub_agent(working: Working) -> None:
    root = [calls(delegate("long", "long work", "c1", tools=["list_dir", "bash"])), text("done")]
    listing = turns(TURNS_BETWEEN_REPORTS + 2, "list_dir", {"path": "."})

    def reply(seen: Any) -> Any:
        if "long work" not in str(seen.messages[1:3]):
            return by_task({"the root": root})(seen)
        return BASH if seen.turn == TURNS_BETWEEN_REPORTS + 1 else listing(seen)

    loom, _ = await working(reply)
    run_id = await loom.start("the root")

    status = await loom.until(
        run_id, lambda status: any(each["turn"] >= TURNS_BETWEEN_REPORTS for each in status["children"])
    )
    assert status["status"] in ("running", "waiting_for_approval")
    await loom.client.abort(run_id)
    await loom.client.result(run_id)


def cancelled(history: WorkflowHistory) -> Sequence[Any]:
    """The requests to cancel the run."""
    asked = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    return [event for event in history.events if event.event_type == asked]
