"""Calls of quick tools run as local activities: in a workflow task, without one of their own for their results."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from loom.activities import run_tool
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.history.past_turns import turns_of
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, text
from loom.testing.stream import told
from loom.workflows import options
from tests.integration.workflows.conftest import Working
from tests.local_calls import local_calls

APP = "tests.quick_app:app"
READ = ToolUse("read_file", {"path": "a.txt"}, "r1")
LIST = ToolUse("list_dir", {"path": "."}, "l1")
RESULT = f'"action":"{Action.TOOL_RESULT.value}"'.encode()
GREP = ToolUse("grep", {"pattern": "alpha"}, "g1")


def local(histories: Sequence[WorkflowHistory]) -> dict[str, tuple[str, bool]]:
    """The local tool calls of a run: each one's id with its summary, and whether it has a result."""
    found = [call for history in histories for call in local_calls(history.events)]
    return {call.activity_id: (call.summary, call.result is not None) for call in found}


def scheduled(histories: Sequence[WorkflowHistory]) -> list[str]:
    """The ids of a run's activities."""
    events = [event for history in histories for event in history.events]
    return [name for each in events if (name := each.activity_task_scheduled_event_attributes.activity_id)]


async def test_a_read_is_a_local_activity_that_history_names(working: Working) -> None:
    loom, _ = await working(script([calls(READ, LIST), text("done")]))
    (loom.workspace / "a.txt").write_text("alpha")
    run_id = await loom.start()
    result = await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert (result.output, result.tool_calls) == ("done", 2)
    assert local(histories) == {"t1-r1": ("t1 · read_file: a.txt", True), "t1-l1": ("t1 · list_dir: .", True)}
    assert scheduled(histories) == ["prepare", "t1-model", "t2-model"]
    (first, _) = turns_of(await TemporalPasts(loom.client.temporal).records(run_id))
    assert {tool.request.call_id: (tool.request.tool, tool.request.arguments) for tool in first.tools} == {
        "r1": ("read_file", {"path": "a.txt"}),
        "l1": ("list_dir", {"path": "."}),
    }
    exported = [record async for record in loom.client.export(run_id)]
    assert [each["effect"] for each in exported if each["record"] == "tool_call"] == ["read", "read"]


async def test_the_reads_of_a_turn_share_their_writes_to_the_stream(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUICK", "GROUP_WAIT"):  # a busy machine needs longer
        monkeypatch.setattr(run_tool, name, 60.0)
    monkeypatch.setitem(options.QUICK_READ, "schedule_to_close_timeout", timedelta(minutes=1))
    results: list[int] = []
    send = RedisConnection._answers

    async def counted(link: RedisConnection, writes: Sequence[Any], scripts: Sequence[Any]) -> Sequence[Any]:
        results.append(sum(RESULT in data for each in scripts for data in each.arguments if isinstance(data, bytes)))
        return await send(link, writes, scripts)

    monkeypatch.setattr(RedisConnection, "_answers", counted)
    reads = [ToolUse("read_file", {"path": "a.txt"}, f"r{number}") for number in range(8)]
    loom, _ = await working(script([calls(*reads), text("done")]))
    (loom.workspace / "a.txt").write_text("alpha")
    await loom.run()

    of_reads = [count for count in results if count]
    assert sum(of_reads) == 8
    assert len(of_reads) <= 2  # the last attempt may be a step ahead of those that wait for it


async def test_a_group_keeps_its_order_if_only_some_of_its_calls_are_local(working: Working) -> None:
    loom, model = await working(script([calls(GREP, READ), text("done")]))
    (loom.workspace / "a.txt").write_text("alpha")
    run_id = await loom.start()
    await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert [*local(histories)] == ["t1-r1"]
    assert scheduled(histories) == ["prepare", "t1-model", "t1-g1", "t2-model"]
    assert [m["tool_call_id"] for m in model.requests[1].messages if m["role"] == "tool"] == ["g1", "r1"]


async def test_the_first_read_after_a_request_is_an_activity(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    loom, model = await working(script([calls(READ), text("done")]))
    answers = asyncio.Event()
    reply_to: Callable[[SeenRequest], Awaitable[Reply]] = model.reply_to

    async def held_back(request: SeenRequest) -> Reply:
        await answers.wait()
        return await reply_to(request)

    monkeypatch.setattr(model, "reply_to", held_back)
    run_id = await loom.start()
    await loom.until(run_id, lambda _: model.count == 1)
    await loom.client.temporal.get_workflow_handle(run_id).signal("resume")  # which it doesn't need
    answers.set()
    await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert (local(histories), scheduled(histories)) == ({}, ["prepare", "t1-model", "t1-r1", "t2-model"])


async def test_a_read_that_a_person_must_approve_is_an_activity(working: Working) -> None:
    loom, _ = await working(script([calls(READ), text("done")]))
    (loom.workspace / "a.txt").write_text("alpha")
    run_id = await loom.start(permissions={"read_file": "ask"})
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert (local(histories), scheduled(histories)) == ({}, ["prepare", "t1-model", "t1-r1", "t2-model"])


async def test_a_read_that_takes_too_long_goes_on_as_an_activity(working: Working) -> None:
    loom, _ = await working(script([calls(ToolUse("look", {"seconds": 5.0}, "r1")), text("done")]), app=APP)
    run_id = await loom.start()
    result = await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert (result.output, result.tool_calls) == ("done", 1)
    assert local(histories) == {"t1-r1": ("t1 · look", False)}
    assert scheduled(histories) == ["prepare", "t1-model", "t1-r1-2", "t2-model"]
    events = await told(loom.client, run_id)
    results = [event.task.parameters["attempt"] for event in events if event.task.action is Action.TOOL_RESULT]
    assert results == [2]
    (first, _) = turns_of(await TemporalPasts(loom.client.temporal).records(run_id))
    assert [(tool.request.attempt, tool.result is None) for tool in first.tools] == [(1, True), (2, False)]


async def test_a_worker_that_stands_still_for_a_moment_tells_a_read_once(working: Working) -> None:
    loom, _ = await working(script([calls(ToolUse("stare", {"seconds": 0.5}, "s1")), text("done")]), app=APP)
    run_id = await loom.start()
    await loom.client.result(run_id)

    assert local(await loom.histories(run_id)) == {"t1-s1": ("t1 · stare", True)}
    events = await told(loom.client, run_id)
    tool_events = [event.task.action for event in events if event.task.parameters.get("call_id") == "s1"]
    assert tool_events == [Action.TOOL_CALL, Action.TOOL_RESULT]


async def test_an_abort_ends_a_run_whose_read_hangs(working: Working) -> None:
    hangs = ToolUse("look", {"seconds": 60.0, "always": True}, "r1")
    loom, _ = await working(script([calls(hangs), text("never")]), app=APP)
    run_id = await loom.start()
    await loom.until(run_id, lambda _: (loom.workspace / "looked").exists())
    await loom.client.abort(run_id, reason="enough", by="ann")

    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
