"""How runs come to an end by themselves, end to end: loops that are stopped, drafts that are revised, answers rated."""

import json
from typing import Any

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.tools.loop_detection import WARN_AFTER
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, hang, script, status, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

LIST = calls(ToolUse("list_dir", {"path": "."}))
REFLECT = {"loom": {"pattern": "reflect", "rounds": 2}}
EVALUATE = {"loom": {"evaluate": True}}
RATINGS = {"confidence": 0.9, "coverage": 1.0, "novelty": 0.25}
BOTH = pytest.mark.parametrize("model", ["openai:scripted", "anthropic:scripted"])


def heard(request: SeenRequest) -> str:
    """All that the model was sent in its last message."""
    return json.dumps(request.messages[-1]["content"], ensure_ascii=False)


@BOTH
async def test_a_model_that_goes_round_in_circles_is_warned_and_then_stopped(working: Working, model: str) -> None:
    loom, server = await working(script([LIST], repeat_last=True), loop_window=5)

    run_id = await loom.start(model=model)
    result = await loom.client.result(run_id)

    assert result.error is not None
    assert (result.status, result.turns, result.error.type) == (RunStatus.LIMIT_REACHED, 5, "LoopDetected")
    assert result.error.context["reason"] == "loop"
    told_at = [number for number, request in enumerate(server.requests) if "you have repeated calls" in heard(request)]
    assert told_at == [WARN_AFTER + 1]
    warnings = [e.task.parameters["text"] for e in await told(loom.client, run_id) if e.task.action is Action.BUDGET]
    assert [warning[:15] for warning in warnings] == ["For 2 turns you", "The last answer"]
    assert len(server.requests) == 6


async def test_two_calls_by_turns_are_a_loop_too_and_what_moves_is_none(working: Working, workspace: Any) -> None:
    (workspace / "log").write_text("start\n")
    read = ToolUse("read_file", {"path": "log"})

    def by_turns(request: SeenRequest) -> Reply:
        return calls(read if request.turn % 2 else ToolUse("list_dir", {"path": "."}))

    def polling(request: SeenRequest) -> Reply:
        with (workspace / "log").open("a") as log:
            log.write(f"line {request.turn}\n")
        return calls(read) if request.turn < 12 else text("finished")

    scripts = {"by turns": by_turns, "polling": polling}
    loom, _ = await working(lambda request: scripts[_task(request)](request), loop_window=5)

    looped, polled = await loom.run("by turns"), await loom.run("polling")

    assert (looped.status, looped.turns) == (RunStatus.LIMIT_REACHED, 6)
    assert (polled.status, polled.output) == (RunStatus.COMPLETED, "finished")


def _task(request: SeenRequest) -> str:
    return str(next(message["content"] for message in request.messages if message["role"] == "user"))


@BOTH
async def test_a_draft_is_criticised_without_tools_and_revised_with_them(working: Working, model: str) -> None:
    criticised, good = text('The list is missing. {"good": false}'), text('Complete. {"good": true}')
    loom, server = await working(script([text("Draft."), criticised, LIST, text("Revised."), good]))

    run_id = await loom.start(model=model, metadata=REFLECT)
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "Revised.", 5)
    may_call = [bool(r.body.get("tools")) and "tool_choice" not in r.body for r in server.requests]
    assert may_call == [True, False, True, True, False]
    assert "strict reviewer" in heard(server.requests[1])
    events = [event.task for event in await told(loom.client, run_id)]
    phases = [task.parameters["phase"] for task in events if task.action is Action.TURN]
    assert phases == ["draft", "critique", "revision", "revision", "critique"]
    assert await _summaries(loom, run_id, "call_model") == [
        f"t1 · draft · model {model}",
        f"t2 · critique 1 of 2 · model {model}",
        f"t3 · revision 1 of 2 · model {model}",
        f"t4 · revision 1 of 2 · model {model}: list_dir: .",
        f"t5 · critique 2 of 2 · model {model}",
    ]


async def test_a_server_that_calls_tools_all_the_same_has_none_run(working: Working) -> None:
    loom, server = await working(lambda request: LIST if request.turn else text("Draft."))

    result = await loom.run(metadata=REFLECT, max_turns=2)

    assert (result.status, result.output, result.tool_calls) == (RunStatus.COMPLETED, "Draft.", 0)
    assert len(server.requests) == 2


@BOTH
async def test_an_answer_is_rated_by_the_agents_own_model(working: Working, model: str) -> None:
    loom, server = await working(script([LIST, text("Four files."), text(json.dumps(RATINGS))]))

    run_id = await loom.start("How many files?", model=model, metadata=EVALUATE)
    result = await loom.client.result(run_id)

    assert (result.output, result.quality_metrics, result.turns) == ("Four files.", RATINGS, 2)
    assert (result.usage["model_calls"], result.usage["total_tokens"]) == (3, 45)
    asked = heard(server.requests[2])
    assert "<answer>\\nFour files.\\n</answer>" in asked
    assert "How many files?" in asked
    assert "tools" not in server.requests[2].body
    rated = [e.task.parameters for e in await told(loom.client, run_id) if e.task.parameters.get("purpose")]
    assert [(said["purpose"], said["quality_metrics"]) for said in rated] == [("evaluation", RATINGS)]
    assert await _summaries(loom, run_id, "evaluate_answer") == ["t2 · evaluate the answer"]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (text("I would say: very good."), "the answer is not JSON"),
        (text('{"confidence": 3}'), "confidence is 3, not a number from 0 to 1"),
        (status(401), "rejected the key"),
        (status(503), "failed (503)"),
    ],
)
async def test_an_evaluation_that_fails_costs_no_answer(working: Working, reply: Reply, why: str) -> None:
    loom, _ = await working(script([text("Four."), reply]))

    run_id = await loom.start(metadata=EVALUATE)
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.quality_metrics) == (RunStatus.COMPLETED, "Four.", None)
    said = [e.task.parameters for e in await told(loom.client, run_id) if e.task.parameters.get("purpose")]
    assert why in str(said)


async def test_a_run_can_be_aborted_while_its_answer_is_rated(working: Working) -> None:
    loom, server = await working(lambda request: hang() if len(request.messages) == 2 and request.index else text("4"))
    run_id = await loom.start(metadata=EVALUATE)
    await loom.until(run_id, lambda seen: seen["waiting_on"] == "evaluation")

    await loom.client.abort(run_id)

    result = await loom.client.result(run_id)
    assert (result.status, result.output) == (RunStatus.ABORTED, "4")
    assert len(server.requests) == 2


async def test_a_setting_has_every_run_rated_and_a_request_may_go_without(working: Working) -> None:
    def rated(request: SeenRequest) -> Reply:
        return text(json.dumps(RATINGS) if "Rate the answer" in heard(request) else "Four.")

    loom, _ = await working(rated, evaluation="on")

    assert (await loom.run()).quality_metrics == RATINGS
    assert (await loom.run(metadata={"loom": {"evaluate": False}})).quality_metrics is None


async def test_what_a_sub_agent_says_is_not_rated_with_every_run(working: Working) -> None:
    tree = {
        "Rate the answer": [text(json.dumps(RATINGS))],
        "count the files": [text("Four.")],
        "the root": [calls(delegate("count", "count the files")), text("There are four.")],
    }
    loom, server = await working(by_task(tree), evaluation="on")

    result = await loom.run("the root")

    assert (result.output, result.quality_metrics) == ("There are four.", RATINGS)
    assert sum("Rate the answer" in heard(request) for request in server.requests) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"patern": "reflect"}, "did you mean 'pattern'?"),
        ({"pattern": "grove"}, "one of react, reflect, tree"),
        ({"rounds": 0}, "a number from 1 to 10"),
        ({"evaluate": "yes"}, "must be true or false"),
        ("reflect", "must be an object"),
    ],
)
async def test_an_option_that_is_none_ends_the_run_before_it_begins(working: Working, options: Any, why: str) -> None:
    loom, _ = await working(script([]))

    result = await loom.run_unseen(metadata={"loom": options})

    assert result.error is not None
    assert (result.error.type, result.error.context) == ("BadRequest", {"field": "metadata.loom"})
    assert why in result.error.message


async def _summaries(loom: Any, run_id: str, activity: str) -> list[str]:
    """What the Web UI shows of the activities of one type."""
    found = []
    for history in await loom.histories(run_id):
        for event in history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == activity:
                (summary,) = await loom.client.temporal.data_converter.decode([event.user_metadata.summary])
                found.append(summary)
    return found
