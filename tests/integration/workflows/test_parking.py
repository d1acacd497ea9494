"""Providers that go away, and access that is lost, in the middle of a run: real SDKs, a real server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from loom.domain.core.errors import RefusedError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import (
    Reply,
    SeenRequest,
    ToolUse,
    calls,
    cut_after,
    garbage,
    hang,
    status,
    text,
)
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

QUICK = {"model_attempts": 1}
"""One try, and then the run is parked."""
TURNS = 6


def six_turns(request: SeenRequest) -> Reply:
    """Five turns with a tool call each, which leaves a mark, and an answer in the sixth."""
    mark = ToolUse("write_file", {"path": f"{request.turn}.txt", "content": "once"}, f"w{request.turn}")
    return calls(mark) if request.turn < TURNS - 1 else text("finished")


def in_turn_3(*broken: Reply) -> Callable[[SeenRequest], Reply]:
    """The same, but the first requests of the third turn go wrong."""
    left = list(broken)
    return lambda request: left.pop(0) if request.turn == 2 and left else six_turns(request)


async def parked(loom: Harness, run_id: str, on: str = "provider") -> JsonObject:
    """Wait until the run is parked, and return its status."""
    return await loom.until(run_id, lambda seen: seen["waiting_on"] == on)


async def events_of(loom: Harness, run_id: str) -> list[tuple[str, Any]]:
    """The parking in the run's stream, and the tools that ran."""
    shown = (Action.PARKED, Action.UNPARKED, Action.FALLBACK, Action.TOOL_CALL)
    return [
        (seen.task.action.value, seen.task.parameters)
        async for seen in loom.client.events(run_id)
        if seen.task.action in shown
    ]


async def check_each_step_ran_once(loom: Harness, run_id: str, workspace: Path) -> None:
    assert sorted(file.name for file in workspace.glob("*.txt")) == [f"{turn}.txt" for turn in range(TURNS - 1)]
    began = [said["call_id"] for action, said in await events_of(loom, run_id) if action == Action.TOOL_CALL]
    assert began == [f"w{turn}" for turn in range(TURNS - 1)]


@pytest.mark.parametrize("seconds", [0, pytest.param(60, marks=pytest.mark.slow)])
async def test_a_provider_that_is_switched_off_for_a_while_delays_a_run(
    working: Working, workspace: Path, seconds: float
) -> None:
    is_going = asyncio.Event()

    def falls_silent(request: SeenRequest) -> Reply:
        if request.turn == 2 and not is_going.is_set():
            is_going.set()
            return hang()
        return six_turns(request)

    loom, model = await working(falls_silent, model_attempts=2, first_retry_delay=0.1)
    run_id = await loom.start(mode="bypass")
    await is_going.wait()
    async with model.unavailable():
        view = (await parked(loom, run_id))["parked"]
        await asyncio.sleep(seconds)
    assert view["error"]["type"] == "LLMUnavailableError"
    assert "no connection" in view["error"]["message"]

    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "finished", TURNS)
    await check_each_step_ran_once(loom, run_id, workspace)
    (parking, why), (unparked, how) = [e for e in await events_of(loom, run_id) if "parked" in e[0]]
    assert (parking, why["waiting_on"], why["next_probe"]) == (Action.PARKED, "provider", view["next_probe"])
    assert (unparked, how["waited_on"]) == (Action.UNPARKED, "provider")


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (status(429, retry_after=600), "LLMRateLimitError"),
        (status(408), "LLMUnavailableError"),
        (status(409), "LLMUnavailableError"),
        (status(529, error_code="overloaded_error"), "LLMUnavailableError"),
        (garbage(), "LLMBadResponseError"),
        (cut_after(3), "LLMUnavailableError"),
        pytest.param(hang(0), "LLMUnavailableError", marks=pytest.mark.slow),
        (hang(3), "LLMUnavailableError"),
    ],
    ids=["429", "408", "409", "overloaded", "garbage", "cut stream", "never answers", "falls silent"],
)
@pytest.mark.parametrize("model", ["openai:scripted", pytest.param("anthropic:scripted", marks=pytest.mark.slow)])
async def test_a_provider_that_fails_in_the_middle_is_waited_for(
    working: Working, workspace: Path, broken: Reply, error: str, model: str
) -> None:
    is_back = asyncio.Event()

    def away(request: SeenRequest) -> Reply:
        return broken if request.turn == 2 and not is_back.is_set() else six_turns(request)

    loom, _ = await working(away, **QUICK, model=model, model_timeout=6)
    run_id = await loom.start(mode="bypass")

    view = (await parked(loom, run_id))["parked"]

    assert view["error"]["type"] == error
    is_back.set()
    await loom.client.retry(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    await check_each_step_ran_once(loom, run_id, workspace)


async def test_a_parked_run_tries_again_by_itself_no_earlier_than_its_provider_asked(working: Working) -> None:
    loom, server = await working(in_turn_3(status(429, retry_after=2)), **QUICK)
    began = monotonic()
    result = await loom.run(mode="bypass")
    assert (result.status, server.count) == (RunStatus.COMPLETED, TURNS + 1)
    assert monotonic() - began >= 2


async def test_a_rejected_key_waits_for_a_person_who_goes_on_with_another_model(
    working: Working, workspace: Path
) -> None:
    def only_anthropic(request: SeenRequest) -> Reply:
        lost = request.provider == "openai" and request.turn >= 2
        return status(401, message="no such key") if lost else six_turns(request)

    loom, _ = await working(only_anthropic)
    run_id = await loom.start(mode="bypass")
    seen = await parked(loom, run_id, "operator")
    assert (seen["status"], seen["parked"]["next_probe"]) == ("running", None)
    assert "OPENAI_API_KEY" in seen["parked"]["error"]["message"]
    assert f"loom retry {run_id} --model" in seen["parked"]["way_out"]

    receipt = await loom.client.retry(run_id, model="anthropic:backup", by="ann")

    assert receipt["accepted"]
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    await check_each_step_ran_once(loom, run_id, workspace)
    said = [each for each in await events_of(loom, run_id) if each[0] == Action.FALLBACK]
    assert [(how["model"], how["by"]) for _, how in said] == [("anthropic:backup", "ann")]


async def test_a_key_that_is_rejected_from_the_start_fails_the_run_at_once(working: Working) -> None:
    loom, server = await working(lambda _: status(401, message="no such key"))
    result = await loom.run()
    assert (result.status, server.count) == (RunStatus.FAILED, 1)
    assert result.error is not None
    assert "OPENAI_API_KEY" in result.error.message


async def test_a_run_whose_patience_is_over_fails_with_the_error_of_its_provider(working: Working) -> None:
    loom, server = await working(in_turn_3(*[status(503)] * 99), **QUICK)
    began = monotonic()
    result = await loom.run(mode="bypass", patience=2)
    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert (result.error.type, "failed (503)" in result.error.message) == ("LLMUnavailableError", True)
    assert monotonic() - began >= 2
    assert server.count == 4  # two turns, the call that failed, and a last try when the patience was over


async def test_a_parked_run_obeys_while_it_waits(working: Working) -> None:
    loom, server = await working(in_turn_3(*[status(429, retry_after=3600)] * 99), **QUICK)
    run_id = await loom.start(mode="bypass")
    await parked(loom, run_id)

    await loom.client.send(run_id, "use blue", by="ann")
    await loom.client.pause(run_id)
    paused = await loom.until(run_id, lambda seen: seen["status"] == "paused")
    assert (paused["waiting_on"], paused["queued_messages"]) == ("resume", 1)
    await loom.client.resume(run_id)
    await parked(loom, run_id)

    calls_until_now = server.count
    await loom.client.abort(run_id, reason="enough")
    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
    assert server.count == calls_until_now


async def test_the_next_try_contains_the_message_that_arrived_during_the_wait(working: Working) -> None:
    loom, server = await working(in_turn_3(status(503)), **QUICK)
    run_id = await loom.start(mode="bypass")
    await parked(loom, run_id)
    await loom.client.send(run_id, "use blue", by="ann")
    await loom.client.retry(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert "use blue" in str(server.requests[3].messages[-1])
    assert [turn.number for turn in await loom.client.turns(run_id)] == list(range(1, TURNS + 1))


@pytest.mark.slow
async def test_a_parked_run_continues_as_new_and_stays_parked(working: Working) -> None:
    loom, server = await working(in_turn_3(*[status(503)] * 99), **QUICK, rotate_after_events=100)
    run_id = await loom.start(mode="bypass")
    since = (await parked(loom, run_id))["parked"]["since"]

    while len(await loom.histories(run_id)) < 2:
        tried = server.count
        await loom.client.temporal.get_workflow_handle(run_id).signal("retry", {"by": "ann"})

        async def tried_again(before: int = tried) -> bool:
            return bool(server.count > before)

        await eventually(tried_again)

    assert (await parked(loom, run_id))["parked"]["since"] == since
    await loom.client.abort(run_id)
    await loom.client.result(run_id)


async def test_a_deadline_ends_a_parked_run(working: Working) -> None:
    loom, _ = await working(in_turn_3(*[status(503)] * 99), **QUICK)
    result = await loom.run(mode="bypass", budget={"seconds": 4})
    assert result.status is RunStatus.BUDGET_EXHAUSTED


async def test_parked_runs_are_found_by_what_they_wait_for(working: Working) -> None:
    lost = {"no provider": status(503), "no key": status(401)}

    def one_each(request: SeenRequest) -> Reply:
        task = next(task for task in lost if task in str(request.messages))
        return lost[task] if request.turn else six_turns(request)

    loom, _ = await working(one_each, **QUICK)
    away, locked = await loom.start("no provider", mode="bypass"), await loom.start("no key", mode="bypass")

    async def listed(waiting: str, run_id: str) -> bool:
        return run_id in [run.run_id for run in await loom.client.list(waiting=waiting)]

    await eventually(lambda: listed("provider", away))
    await eventually(lambda: listed("operator", locked))
    assert not await listed("operator", away)
    for run_id in (away, locked):
        await loom.client.abort(run_id)
        await loom.client.result(run_id)


async def test_a_run_that_waits_for_nobody_refuses_a_retry(working: Working) -> None:
    loom, _ = await working(lambda _: hang())
    run_id = await loom.start()
    await loom.until(run_id, lambda seen: seen["waiting_on"] == "model")
    with pytest.raises(RefusedError, match="not waiting for its provider"):
        await loom.client.retry(run_id)
    await loom.client.abort(run_id)


async def test_a_sub_agent_waits_by_itself_and_its_parent_says_which_one(working: Working) -> None:
    lost = [status(503)]
    replies = by_task({"the root": [calls(delegate("look", "LOOK", "c1")), text("ok")], "LOOK": [text("seen")]})

    def away_at_first(request: SeenRequest) -> Reply:
        return lost.pop() if lost and "LOOK" in str(request.messages[1]) else replies(request)

    loom, _ = await working(away_at_first, **QUICK)
    run_id = await loom.start("the root")
    seen = await loom.until(run_id, lambda s: any(child["waiting_on"] == "provider" for child in s["children"]))
    (child,) = seen["children"]
    assert seen["waiting_on"].startswith("sub-agents")

    async def names_the_child() -> bool:
        try:
            await loom.client.retry(run_id)
        except RefusedError as error:
            return child["run_id"] in error.message
        return False

    await eventually(names_the_child)
    await loom.client.retry(child["run_id"])
    assert (await loom.client.result(run_id)).output == "ok"
