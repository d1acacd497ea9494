"""Quick reads run in the activity that called the model, unless the run has to decide about them first."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from temporalio.client import WorkflowHistory

from loom.activities import run_tool
from loom.activities.adapters.postgres.effects import PostgresReplies
from loom.activities.adapters.temporal.history_facts import facts_of
from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.ports import StoreUnavailable
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.history.facts import ActivityAttempt
from loom.domain.history.past_turns import turns_of
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.quick_calls import quick_calls

APP = "tests.quick_app:app"
READ = ToolUse("read_file", {"path": "a.txt"}, "r1")
LIST = ToolUse("list_dir", {"path": "."}, "l1")
WRITE = ToolUse("write_file", {"path": "b.txt", "content": "beta"}, "w1")
GREP = ToolUse("grep", {"pattern": "alpha"}, "g1")


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let quick attempts take long, because the machine may be busy."""
    monkeypatch.setattr(run_tool, "QUICK_TIMEOUT", 60.0)


def quick(histories: Sequence[WorkflowHistory]) -> dict[str, bool]:
    """The quick attempts of a run: each one's ID, and whether it has a result."""
    found = [call for history in histories for call in quick_calls(history.events)]
    return {call.activity_id: call.result is not None for call in found}


def scheduled(histories: Sequence[WorkflowHistory]) -> list[str]:
    """The ids of a run's activities."""
    events = [event for history in histories for event in history.events]
    return [name for each in events if (name := each.activity_task_scheduled_event_attributes.activity_id)]


@pytest.mark.usefixtures("no_hurry")
async def test_a_turn_of_quick_reads_has_one_activity(working: Working) -> None:
    loom, model = await working(script([calls(READ, LIST), text("done")]))
    (loom.workspace / "a.txt").write_text("alpha")
    run_id = await loom.start()
    result = await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert (result.output, result.tool_calls) == ("done", 2)
    assert quick(histories) == {"t1-r1": True, "t1-l1": True}
    assert scheduled(histories) == ["prepare", "t1-model", "t2-model"]
    summaries = [each.user_metadata.summary.data.decode() for each in histories[0].events]
    assert [each for each in summaries if each.startswith('"t2')] == [
        f'"t2 · model {loom.settings.model}: read_file: a.txt, list_dir: ."'
    ]
    assert [m["tool_call_id"] for m in model.requests[1].messages if m["role"] == "tool"] == ["r1", "l1"]
    events = [event.task for event in await told(loom.client, run_id) if event.task.parameters.get("turn") == 1]
    shown = [(task.action, task.parameters["call_id"]) for task in events if "call_id" in task.parameters]
    assert sorted(shown) == sorted(
        (action, i) for action in (Action.TOOL_CALL, Action.TOOL_RESULT) for i in ("r1", "l1")
    )
    (first, _) = turns_of(await TemporalPasts(loom.client.temporal).records(run_id))
    assert {tool.request.call_id: (tool.request.tool, tool.request.arguments) for tool in first.tools} == {
        "r1": ("read_file", {"path": "a.txt"}),
        "l1": ("list_dir", {"path": "."}),
    }
    facts = await facts_of(loom.client.temporal.data_converter, run_id, histories[0].events)
    _, asked, *reads, _ = (fact for fact in facts if isinstance(fact, ActivityAttempt))
    assert [read.began is not None and asked.ended <= read.began for read in reads] == [True, True]
    exported = [record async for record in loom.client.export(run_id)]
    assert [each["effect"] for each in exported if each["record"] == "tool_call"] == ["read", "read"]


@pytest.mark.usefixtures("no_hurry")
@pytest.mark.parametrize(
    ("asked", "activities"),
    [
        ((GREP, READ), ["t1-model", "t1-g1", "t2-model"]),  # both read, so their order doesn't matter
        ((READ, WRITE), ["t1-model", "t1-w1", "t2-model"]),
        ((WRITE, READ), ["t1-model", "t1-w1", "t1-r1", "t2-model"]),  # a read doesn't overtake a change
    ],
)
async def test_other_calls_keep_their_order(working: Working, asked: Sequence[ToolUse], activities: list[str]) -> None:
    loom, model = await working(script([calls(*asked), text("done")]))
    (loom.workspace / "a.txt").write_text("alpha")
    run_id = await loom.start(permissions={"write_file": "allow"})
    await loom.client.result(run_id)

    assert scheduled(await loom.histories(run_id)) == ["prepare", *activities]
    answered = [m["tool_call_id"] for m in model.requests[1].messages if m["role"] == "tool"]
    assert answered == [each.id for each in asked]


async def test_after_a_change_of_rules_during_the_model_call_the_run_decides_about_its_calls(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    loom, model = await working(script([calls(READ), text("done")]))
    answers = asyncio.Event()
    reply_to: Callable[[SeenRequest], Awaitable[Reply]] = model.reply_to

    async def held_back(request: SeenRequest) -> Reply:
        await answers.wait()
        return await reply_to(request)

    monkeypatch.setattr(model, "reply_to", held_back)
    run_id = await loom.start()
    await loom.until(run_id, lambda _: model.count == 1)
    await loom.client.set_permissions(run_id, {"read_file": "deny"})
    answers.set()
    await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert quick(histories) == {}
    (answer,) = [m for m in model.requests[1].messages if m["role"] == "tool"]
    assert answer["content"].startswith("Not permitted")


async def test_a_read_that_a_person_must_approve_is_an_activity(working: Working) -> None:
    loom, _ = await working(script([calls(READ, LIST), text("done")]))
    (loom.workspace / "a.txt").write_text("alpha")
    run_id = await loom.start(permissions={"read_file": "ask"})
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert quick(histories) == {}
    assert scheduled(histories) == ["prepare", "t1-model", "t1-r1", "t1-l1", "t2-model"]


async def test_a_setting_turns_quick_reads_off(working: Working) -> None:
    loom, _ = await working(script([calls(READ), text("done")]), quick_reads=False)
    run_id = await loom.start()
    await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert (quick(histories), scheduled(histories)) == ({}, ["prepare", "t1-model", "t1-r1", "t2-model"])


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), RuntimeError("a fault of the driver")])
async def test_without_the_ledger_the_read_is_an_activity(
    working: Working, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*_: object, **__: object) -> bool:
        raise error

    monkeypatch.setattr(PostgresReplies, "store", fails)
    loom, model = await working(script([calls(READ), calls(READ), text("done")]))
    run_id = await loom.start()
    result = await loom.client.result(run_id)

    assert (result.output, result.tool_calls, model.count) == ("done", 2, 3)
    assert quick(await loom.histories(run_id)) == {}


async def test_a_read_that_takes_too_long_goes_on_as_an_activity(working: Working) -> None:
    loom, _ = await working(script([calls(ToolUse("look", {"seconds": 5.0}, "r1")), text("done")]), app=APP)
    run_id = await loom.start()
    result = await loom.client.result(run_id)
    histories = await loom.histories(run_id)

    assert (result.output, result.tool_calls) == ("done", 1)
    assert quick(histories) == {"t1-r1": False}
    assert scheduled(histories) == ["prepare", "t1-model", "t1-r1-2", "t2-model"]
    events = await told(loom.client, run_id)
    results = [event.task.parameters["attempt"] for event in events if event.task.action is Action.TOOL_RESULT]
    assert results == [2]
    (first, _) = turns_of(await TemporalPasts(loom.client.temporal).records(run_id))
    assert [(tool.request.attempt, tool.result is None) for tool in first.tools] == [(1, True), (2, False)]


@pytest.mark.usefixtures("no_hurry")
async def test_an_abort_during_a_read_keeps_the_results_of_the_others(working: Working) -> None:
    hangs = ToolUse("look", {"seconds": 60.0, "always": True}, "r1")
    loom, _ = await working(script([calls(LIST, hangs), text("never")]), app=APP)
    run_id = await loom.start()
    await loom.until(run_id, lambda _: (loom.workspace / "looked").exists())
    await loom.client.abort(run_id, reason="enough", by="ann")

    result = await loom.client.result(run_id)
    assert (result.status, result.tool_calls) == (RunStatus.ABORTED, 1)
    assert quick(await loom.histories(run_id)) == {"t1-l1": True, "t1-r1": False}
