"""What a client reads of a run while it happens: every event, in order, once, from any offset on."""

import pytest

from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, cut_after, script, status, text
from loom.testing.stream import actions, assert_whole, count, texts, told
from loom.testing.waiting import eventually
from tests.corpora.secrets.making import ALNUM, Maker
from tests.integration.workflows.conftest import Working

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
LIST = ToolUse("list_dir", {"path": "."}, "l1")


async def test_a_run_tells_everything_that_happens_in_order(working: Working) -> None:
    loom, _ = await working(script([calls(LIST, text="I look."), calls(WRITE, text="I write."), text("a b", chunks=3)]))
    run_id = await loom.start("write it")
    ask = (await loom.asked(run_id))["pending_approvals"][0]
    await loom.client.send(run_id, "be brief", by="ann")

    async def is_heard() -> bool:  # a message is a signal: an update that is sent after it may be taken before it
        return count(await told(loom.client, run_id), Action.MESSAGE) == 1

    await eventually(is_heard)
    await loom.client.pause(run_id, by="ann")
    await loom.client.resume(run_id, by="bob")
    await loom.client.approve(run_id, "w1", by="ann")
    result = await loom.client.result(run_id)

    events = await told(loom.client, run_id)

    assert_whole(events)
    assert actions(events) == [
        "node.start",
        *("node.turn", "node.thinking", "node.thinking", "node.model_call", "node.tool_call", "node.tool_result"),
        *("node.turn", "node.thinking", "node.thinking", "node.model_call", "node.approval_requested"),
        *("node.message", "node.paused", "node.resumed", "node.approval_decided", "node.tool_call", "node.tool_result"),
        *("node.turn", "node.thinking", "node.thinking", "node.model_call"),
        "node.complete",
    ]
    by_action = {event.task.action: event.task for event in events}
    assert by_action[Action.START].parameters["task"] == "write it"
    told_of_ask = by_action[Action.APPROVAL_REQUESTED].parameters
    assert (told_of_ask["digest"], told_of_ask["risk"]) == (ask["digest"], ask["risk"])
    decided = by_action[Action.APPROVAL_DECIDED].parameters
    assert (decided["call_id"], decided["approved"], decided["by"]) == ("w1", True, "ann")
    assert by_action[Action.MESSAGE].parameters["text"] == "be brief"
    assert by_action[Action.TOOL_RESULT].status == "success"
    ended = by_action[Action.COMPLETE].result
    assert ended is not None
    assert ended["output"] == result.output
    assert texts(events) == {1: "I look.", 2: "I write.", 3: result.output}
    answered = [event.task.result for event in events if event.task.action is Action.MODEL_CALL]
    assert answered == [{"content": content} for content in texts(events).values()]
    assert {event.task.run_id for event in events} == {run_id}


async def test_what_a_model_says_shows_no_secret(working: Working) -> None:
    secret = "gh" + "p_" + Maker(3).of(ALNUM, 36)
    loom, _ = await working(script([text(f"The token is {secret} and that is all.", chunks=12)]))
    run_id = await loom.start()
    result = await loom.client.result(run_id)

    assert result.output == "The token is [REDACTED] and that is all."
    events = await told(loom.client, run_id)
    assert texts(events) == {1: result.output}
    assert secret not in str(events)


async def test_thinking_is_told_by_events_of_its_own_and_is_no_part_of_the_answer(working: Working) -> None:
    secret = "gh" + "p_" + Maker(3).of(ALNUM, 36)
    loom, _ = await working(script([text(f"<think>The token is {secret}.</think>It is set.", chunks=12)]))
    run_id = await loom.start()
    result = await loom.client.result(run_id)
    events = await told(loom.client, run_id)

    thought = [event.task.parameters for event in events if event.task.action is Action.REASONING]
    assert "".join(each["content"] for each in thought) == "The token is [REDACTED]."
    assert {(each["turn"], each["attempt"]) for each in thought} == {(1, 1)}
    assert (result.output, texts(events)) == ("It is set.", {1: "It is set."})


async def test_any_offset_is_a_place_to_go_on_from(working: Working) -> None:
    loom, _ = await working(script([calls(LIST), text("all of the answer", chunks=6)]))
    run_id = await loom.start()
    live = [event async for event in loom.client.watch(run_id)]

    assert live == await told(loom.client, run_id)
    for offset in range(len(live) + 1):
        assert await told(loom.client, run_id, after=offset) == live[offset:]


@pytest.mark.parametrize("broken", [cut_after(3), cut_after(3, clean=True)])
async def test_an_answer_that_broke_off_is_withdrawn_before_the_next_try(working: Working, broken: object) -> None:
    loom, model = await working(script([broken, status(500), text("whole again", chunks=4)]))  # type: ignore[list-item]
    run_id = await loom.start()
    result = await loom.client.result(run_id)

    events = await told(loom.client, run_id)

    assert_whole(events)
    assert texts(events) == {1: result.output} == {1: "whole again"}
    assert count(events, Action.SEGMENT_RESET) == 2
    assert actions(events).index("node.thinking") < actions(events).index("node.segment_reset")
    failed = [
        event.task for event in events if event.task.action is Action.MODEL_CALL and event.task.status == "failed"
    ]
    assert len(failed) == 2
    assert len(model.requests) == 3


async def test_streaming_costs_history_nothing(working: Working) -> None:
    answer = "word " * 200
    loom, _ = await working(script([text(answer), text(answer, chunks=200)]))

    # One after the other: whoever asks first gets the script's first answer.
    in_one = await loom.start()
    await loom.client.result(in_one)
    in_many = await loom.start()
    await loom.client.result(in_many)

    assert await _thoughts(loom, in_one) == 1
    assert await _thoughts(loom, in_many) == 200
    assert await _events_of_history(loom, in_one) == await _events_of_history(loom, in_many)


async def test_a_failed_run_ends_its_stream_with_the_error(working: Working) -> None:
    loom, _ = await working(lambda _: status(401))
    run_id = await loom.start()
    await loom.client.result(run_id)

    events = await told(loom.client, run_id)

    assert_whole(events)
    assert events[-1].task.action is Action.ERROR
    assert events[-1].task.result is not None
    assert events[-1].task.result["error"]["type"] == "LLMConfigurationError"


async def _thoughts(loom: Harness, run_id: str) -> int:
    return count(await told(loom.client, run_id), Action.THINKING)


async def _events_of_history(loom: Harness, run_id: str) -> list[int]:
    return [event.event_type for event in (await loom.histories(run_id))[0].events]
