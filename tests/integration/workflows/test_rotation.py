"""Continue-as-new: a run of many executions is one run to everybody who looks, speaks to it or waits for it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC
from statistics import median
from typing import Any

import psycopg
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.domain.core.errors import RefusedError
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.run_overviews import RunOverviews
from loom.testing.harness import Harness
from loom.testing.model_server import Script, SeenRequest, ToolUse, calls, script, text, turns
from loom.testing.stream import assert_whole, count, told
from loom.testing.waiting import eventually
from loom.visibility import summary_of
from loom.workflows import options
from loom.workflows.agent_run import AgentRun
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER
from tests.integration.workflows.conftest import Working
from tests.quick_calls import quick_calls

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
TURNS = 40


@pytest.mark.slow
async def test_a_run_of_many_executions_is_one_run(working: Working) -> None:
    loom, model = await working(turns(TURNS, "list_dir", {"path": "."}), rotate_after_events=100)
    run_id = await loom.start("a long task", max_turns=100)
    live = [event async for event in loom.client.watch(run_id)]
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "finished")
    assert await loom.client.task_summary(run_id) == "a long task"
    assert (result.turns, result.tool_calls, result.usage["model_calls"]) == (TURNS + 1, TURNS, TURNS + 1)
    assert live == await told(loom.client, run_id)
    assert_whole(live)
    assert (count(live, Action.TURN), count(live, Action.TOOL_RESULT)) == (TURNS + 1, TURNS)

    histories = await loom.histories(run_id)
    assert len(histories) >= 3
    assert all(len(history.events) < 130 for history in histories)
    assert _scheduled(histories) == {"prepare_run": 1, "call_model": TURNS + 1, "run_tool": TURNS}
    # Had a rotation lost what workers know of the conversation, its next model call would have carried all of it.
    sent = [len(event.input.payloads[0].data) for event in _activities(histories, "call_model")]
    assert max(sent) < 1.5 * median(sent)
    assert len(model.requests) == TURNS + 1
    assert [len(request.messages) for request in model.requests] == [2 + 2 * turn for turn in range(TURNS + 1)]
    assert (await loom.client.status(run_id))["status"] == "completed"

    async def is_listed_once() -> bool:
        listed = await loom.client.list(limit=500)
        return [run.status for run in listed if run.run_id == run_id] == ["completed"]

    await eventually(is_listed_once)


async def test_an_ask_and_unread_messages_survive_a_rotation(working: Working) -> None:
    loom, model = await working(script([calls(WRITE), text("written")]), rotate_after_events=100)
    run_id = await loom.start()
    asked = (await loom.asked(run_id))["pending_approvals"]
    said = await _talk_until_rotated(loom, run_id, executions=3)

    assert (await loom.asked(run_id))["pending_approvals"] == asked
    first, *_ = await loom.histories(run_id)
    runs = TemporalRuns(loom.client.temporal)
    described = await runs.described(run_id)
    (overview,) = await RunOverviews(loom.client.temporal).of([summary_of(described)])
    assert await runs.started_at(described) == overview.started_at == first.events[0].event_time.ToDatetime(UTC)

    await loom.client.approve(run_id, "w1", digest=asked[0]["digest"])
    result = await loom.client.result(run_id)

    assert (result.output, result.tool_calls, len(model.requests)) == ("written", 1, 2)
    assert [m["content"] for m in model.requests[1].messages if m["role"] == "user"][1:] == said
    assert_whole(events := await told(loom.client, run_id))
    assert (count(events, Action.MESSAGE), count(events, Action.APPROVAL_REQUESTED)) == (len(said), 1)


async def test_a_pause_survives_a_rotation(working: Working) -> None:
    loom, model = await working(script([calls(WRITE), text("written")]), rotate_after_events=100)
    run_id = await loom.start(permissions={"write_file": "ask"})
    await loom.asked(run_id)
    await loom.client.pause(run_id)
    await loom.client.approve(run_id)
    await _talk_until_rotated(loom, run_id, executions=2)

    assert (await loom.client.status(run_id))["status"] == "paused"
    with pytest.raises(RefusedError, match="already paused"):
        await loom.client.pause(run_id)
    assert len(model.requests) == 1
    await loom.client.resume(run_id)
    assert (await loom.client.result(run_id)).output == "written"


async def test_a_run_rotates_before_the_server_refuses_more_updates(
    monkeypatch: pytest.MonkeyPatch, working: Working
) -> None:
    monkeypatch.setattr(options, "MAX_UPDATES", 5)
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    receipts = [r for _ in range(8) for r in await asyncio.gather(*(_rule(loom, run_id, n) for n in range(4)))]

    assert all(receipt["accepted"] for receipt in receipts)
    assert not any("queued" in receipt for receipt in receipts)
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).output == "written"
    histories = await loom.histories(run_id)
    assert len(histories) >= 3
    accepted = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
    updates = [sum(event.event_type == accepted for event in history.events) for history in histories]
    assert sum(updates) == len(receipts) + 1
    # Those of one workflow task are accepted together, and so are those that came while it was answered.
    assert max(updates) < 5 + 2 * 4


@pytest.mark.slow
async def test_a_large_state_is_carried_on_out_of_line(working: Working) -> None:
    # Above 256 KB once 30 turns have said their 10 KB.
    loom, _ = await working(_talkative(TURNS, 10_000), rotate_after_events=100, replay=False)
    before = _payloads(loom)
    run_id = await loom.start(max_turns=TURNS + 1)
    result = await loom.client.result(run_id)

    assert (result.turns, result.output) == (TURNS + 1, "finished")
    rows = _payloads(loom)[len(before) :]
    assert rows
    assert all(size >= 256 * 1024 for size in rows)
    histories = await loom.histories(run_id)
    starts = [history.events[0].ByteSize() for history in histories]
    assert max(starts) < 300 * 1024
    assert starts[-1] < 4 * 1024
    await _replay(loom, histories)


def _talkative(count: int, size: int) -> Script:
    def reply(request: SeenRequest) -> Any:
        listed = ToolUse("list_dir", {"path": "."}, f"call_{request.turn}")
        return calls(listed, text="x" * size) if request.turn < count else text("finished")

    return reply


async def _rule(loom: Harness, run_id: str, number: int) -> dict[str, Any]:
    return dict(await loom.client.set_permissions(run_id, {f"bash(true {number})": "allow"}))


async def _talk_until_rotated(loom: Harness, run_id: str, *, executions: int) -> list[str]:
    """Send messages one by one until the run is in its n-th execution; what was said."""
    said: list[str] = []
    handle = loom.client.temporal.get_workflow_handle(run_id)
    seen = {(await handle.describe()).run_id}
    while len(seen) < executions:
        said.append(f"message {len(said)}")
        await loom.client.send(run_id, said[-1])
        await loom.until(run_id, lambda status: status["queued_messages"] == len(said))
        seen.add((await handle.describe()).run_id)
        assert len(said) < 200
    return said


def _scheduled(histories: Sequence[WorkflowHistory]) -> Counter[str]:
    quick = sum(call.result is not None for history in histories for call in quick_calls(history.events))
    return Counter(event.activity_type.name for event in _activities(histories)) + Counter(run_tool=quick)


def _activities(
    histories: Sequence[WorkflowHistory], name: str | None = None
) -> list[ActivityTaskScheduledEventAttributes]:
    found = [
        event.activity_task_scheduled_event_attributes
        for history in histories
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    return [activity for activity in found if name in (None, activity.activity_type.name)]


def _payloads(loom: Harness) -> list[int]:
    """Sizes of what is kept out of line, oldest first."""
    assert loom.settings.database_url is not None
    with psycopg.connect(loom.settings.database_url) as database:
        found = database.execute("SELECT to_regclass('loom_payloads')").fetchone()
        if found is None or found[0] is None:
            return []
        return [size for (size,) in database.execute("SELECT size FROM loom_payloads ORDER BY created_at")]


async def _replay(loom: Harness, histories: Sequence[WorkflowHistory]) -> None:
    assert loom.settings.database_url is not None
    storage = PostgresPayloads(loom.settings.database_url)
    try:
        converter = data_converter(storage)
        replayer = Replayer(workflows=[AgentRun], workflow_runner=WORKFLOW_RUNNER, data_converter=converter)
        for history in histories:
            await replayer.replay_workflow(history)
    finally:
        await storage.aclose()
