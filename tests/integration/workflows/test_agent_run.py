"""The loop, end to end: real Temporal, Redis and Postgres, real SDKs against a scripted model over HTTP."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import HANGS_AFTER
from loom.testing.model_server import (
    Reply,
    SeenRequest,
    ToolUse,
    calls,
    context_length,
    cut_after,
    cut_length,
    empty,
    garbage,
    malformed_call,
    refusal,
    script,
    status,
    text,
)
from tests.integration.workflows.conftest import Working


async def test_an_app_can_bring_its_own_source_of_models(working: Working) -> None:
    loom, model = await working(lambda request: text("not asked"), app="tests.provider_app:app")

    result = await loom.run("hello", model="echo:loud")

    assert (result.status, result.output) == (RunStatus.COMPLETED, "loud: hello")
    assert model.requests == []


async def test_a_plain_answer_ends_the_run(working: Working) -> None:
    loom, _ = await working(script([text("Four.")]))

    result = await loom.run("What is two and two?")

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "Four.", 1)
    assert not result.completed_explicitly
    assert result.usage["total_tokens"] == 15


async def test_tool_results_come_back_in_call_order_and_the_model_reads_them(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("alpha")
    (workspace / "b.txt").write_text("beta")
    both = calls(ToolUse("read_file", {"path": "a.txt"}, "c1"), ToolUse("read_file", {"path": "b.txt"}, "c2"))
    loom, model = await working(script([both, text("read")]))

    result = await loom.run()

    seen = [m for m in model.requests[1].messages if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in seen] == ["c1", "c2"]
    assert "alpha" in seen[0]["content"]
    assert "beta" in seen[1]["content"]
    assert result.tool_calls == 2


async def test_done_ends_the_run_at_once_and_other_calls_are_not_run(working: Working, workspace: Path) -> None:
    reply = calls(ToolUse("write_file", {"path": "x", "content": "y"}), ToolUse("done", {"result": "ready"}))
    loom, _ = await working(script([reply]))

    result = await loom.run(permissions={"write_file": "allow"})

    assert (result.status, result.output, result.completed_explicitly) == (RunStatus.COMPLETED, "ready", True)
    assert not (workspace / "x").exists()


async def test_the_last_turn_reports_what_was_still_wanted(working: Working) -> None:
    loom, _ = await working(lambda _: calls(ToolUse("list_dir", {"path": "."})))

    result = await loom.run(max_turns=3)

    assert result.status is RunStatus.LIMIT_REACHED
    assert result.turns == 3
    assert result.error is not None
    assert "list_dir" in result.error.message


async def test_a_run_out_of_turns_sums_up_without_tools(working: Working) -> None:
    look = ToolUse("list_dir", {"path": "."})
    loom, model = await working(lambda seen: calls(look) if seen.body.get("tools") else text("this far I came"))

    result = await loom.run(max_turns=3)

    assert (result.status, result.output, result.turns) == (RunStatus.LIMIT_REACHED, "this far I came", 3)
    assert ["tools" in request.body for request in model.requests] == [True, True, True, False]
    assert "This is your last answer" in model.requests[-1].messages[-1]["content"]


async def test_a_budget_bounds_every_call_and_ends_the_run_with_a_summary(working: Working) -> None:
    look = ToolUse("list_dir", {"path": "."})

    def reply(seen: SeenRequest) -> Reply:
        used = (3000 + 500 * seen.turn, 400, 0)
        return replace(calls(look) if seen.body.get("tools") else text("so much"), usage=used)

    loom, model = await working(reply)

    result = await loom.run(budget={"tokens": 20_000})

    assert (result.status, result.output) == (RunStatus.BUDGET_EXHAUSTED, "so much")
    assert result.turns == len(model.requests) - 1 > 1
    assert result.usage["total_tokens"] <= 20_000
    spent = 0
    for request, used in zip(model.requests, range(len(model.requests)), strict=True):
        assert spent + request.body["max_tokens"] <= 20_000
        spent += 3400 + 500 * used


@pytest.mark.parametrize(
    ("price", "status"), [("deny", "failed"), ("assume", "budget_exhausted"), ("free", "completed")]
)
async def test_what_a_model_without_a_known_price_costs_is_a_decision(
    working: Working, price: str, status: str
) -> None:
    loom, _ = await working(script([text("ok")]), unknown_price=price)

    result = await loom.run(budget={"cost_usd": 0.02})

    assert result.status == status
    if price == "deny":
        assert result.error is not None
        assert "the price of openai:scripted is unknown" in result.error.message


async def test_a_required_done_tool_is_asked_for(working: Working) -> None:
    loom, model = await working(script([text("I think that is it."), calls(ToolUse("done", {"result": "it"}))]))

    result = await loom.run(require_done_tool=True)

    assert (result.output, result.turns) == ("it", 2)
    assert "done" in model.requests[1].messages[-1]["content"]


async def test_cut_answers_are_continued_and_joined(working: Working) -> None:
    loom, _ = await working(script([cut_length("first half, "), text("second half")]))

    assert (await loom.run()).output == "first half, second half"


async def test_empty_answers_are_asked_again_and_then_fail(working: Working) -> None:
    loom, model = await working(lambda _: empty())

    result = await loom.run()

    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.type == "LLMBadResponseError"
    assert len(model.requests) == 3
    with pytest.raises(WorkflowFailureError) as failed:
        await loom.client.temporal.get_workflow_handle(loom.started[0]).result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.details[0]["error"] == {
        "type": "LLMBadResponseError",
        "message": result.error.message,
        "context": {},
    }


async def test_the_model_can_mend_malformed_arguments(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("alpha")
    mended = calls(ToolUse("read_file", {"path": "a.txt"}))
    loom, model = await working(script([malformed_call("read_file", '{"path": "a.tx'), mended, text("ok")]))

    result = await loom.run()

    assert result.output == "ok"
    assert "not a JSON object" in model.requests[1].messages[-1]["content"]
    assert "alpha" in model.requests[2].messages[-1]["content"]


async def test_arguments_reach_the_tool_as_they_are_meant_or_their_cause_the_model(
    working: Working, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("alpha")
    sent = [
        malformed_call("todo", '{"items": "[{\\"task\\": \\"bake\\"}]"}'),
        malformed_call("write_file", '{"path": "n.txt", "content": "one\ntwo"}'),
        malformed_call("read_file", '{"path": "a.txt", "limit": NaN}'),
    ]
    loom, model = await working(script([*sent, text("ok")]))

    result = await loom.run(permissions={"write_file": "allow"})

    assert result.output == "ok"
    last = [request.messages[-1]["content"] for request in model.requests[1:]]
    assert "bake" in last[0]
    assert (workspace / "n.txt").read_text() == "one\ntwo"
    assert "NaN isn't a JSON number; send one complete JSON object with path, offset, limit" in last[2]


async def test_rate_limits_are_waited_for_and_server_errors_tried_again(working: Working) -> None:
    loom, model = await working(script([status(429, retry_after=0.1), status(500), text("at last")]))

    result = await loom.run()

    assert (result.output, result.turns, len(model.requests)) == ("at last", 1, 3)


@pytest.mark.parametrize("model", ["openai:scripted", "anthropic:scripted"])
async def test_a_reply_that_breaks_off_is_paid_for(working: Working, model: str) -> None:
    loom, _ = await working(script([cut_after(4), text("at last")]), model=model)

    result = await loom.run()

    assert (result.output, result.turns, result.usage["model_calls"]) == ("at last", 1, 2)


@pytest.mark.parametrize("model", ["openai:scripted", "anthropic:scripted"])
@pytest.mark.parametrize(
    ("reply", "error", "calls_made"),
    [
        (status(401), "LLMConfigurationError", 1),
        (status(404), "LLMConfigurationError", 1),
        (status(429, retry_after=0.05), "LLMRateLimitError", 3),
        (status(503, retry_after=0.05), "LLMUnavailableError", 3),
        (garbage(), "LLMBadResponseError", 3),
        (cut_after(3), "LLMUnavailableError", 3),
        (refusal(), "LLMRefusedError", 1),
        (context_length(), "LLMContextLengthError", 3),  # whole, compressed, and half of it
    ],
    ids=["401", "404", "429", "503", "garbage", "cut stream", "refusal", "too long"],
)
async def test_a_provider_that_keeps_failing_fails_the_run_with_its_own_error(
    working: Working, model: str, reply: Reply, error: str, calls_made: int
) -> None:
    loom, server = await working(lambda _: reply, model=model)

    result = await loom.run()

    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert (result.error.type, len(server.requests)) == (error, calls_made)


async def test_another_provider_takes_over_where_one_is_down(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("alpha")

    def reply(request: SeenRequest) -> Reply:
        if request.provider == "openai" and request.turn > 0:
            return status(503, retry_after=0.05)
        return calls(ToolUse("read_file", {"path": "a.txt"})) if request.turn == 0 else text("read it")

    loom, server = await working(reply, fallback_models="anthropic:backup")

    result = await loom.run()

    assert (result.status, result.output) == (RunStatus.COMPLETED, "read it")
    assert [request.provider for request in server.requests] == ["openai"] * 4 + ["anthropic"]
    assert "alpha" in str(server.requests[-1].messages)
    events = [streamed.task async for streamed in loom.client.events(loom.started[0])]
    fallen = [task.parameters for task in events if task.action is Action.FALLBACK]
    assert fallen == [{"model": "anthropic:backup", "instead_of": "openai:scripted", "because": "LLMUnavailableError"}]


async def test_a_fallback_that_cannot_be_called_is_refused_at_the_start(working: Working) -> None:
    loom, _ = await working(script([text("never")]), fallback_models="gemini")

    result = await loom.run()

    assert result.error is not None
    assert (result.error.type, "no such model: 'gemini'" in result.error.message) == ("BadRequest", True)


async def test_a_conversation_that_is_too_long_is_shortened_once(working: Working, workspace: Path) -> None:
    (workspace / "long.txt").write_text("word " * 1500)
    read = [calls(ToolUse("read_file", {"path": "long.txt"})) for _ in range(4)]
    summary = text("<background_context>four readings of one file</background_context>")
    loom, model = await working(script([*read, context_length(), summary, text("made it")]))

    result = await loom.run()

    assert result.output == "made it"
    refused, _asked_to_sum_up, after = (len(str(request.messages)) for request in model.requests[-3:])
    assert after < refused * 0.75
    assert "four readings of one file" in str(model.requests[-1].messages[0])


@pytest.mark.parametrize(
    ("request_field", "value", "named"),
    [
        ("model", "nonsense:x", "nonsense"),
        ("agent", "defualt", "did you mean 'default'"),
        ("workspace", "/no/such", ""),
    ],
)
async def test_what_cannot_be_is_refused_with_a_message_that_names_it(
    working: Working, request_field: str, value: str, named: str
) -> None:
    loom, _ = await working(script([text("never")]))

    result = await loom.run_unseen(**{request_field: value})

    assert result.error is not None
    assert result.error.type == "BadRequest"
    assert named in result.error.message


async def test_a_run_without_any_model_is_told_the_ways_out(working: Working) -> None:
    loom, _ = await working(script([text("never")]), model=None)

    result = await loom.run()

    assert result.error is not None
    assert result.error.type == "LLMConfigurationError"
    assert all(
        way in result.error.message for way in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "demo")
    )


async def test_a_wrong_key_is_not_tried_again(working: Working) -> None:
    loom, model = await working(lambda _: status(401))

    result = await loom.run()

    assert result.error is not None
    assert result.error.type == "LLMConfigurationError"
    assert "OPENAI_API_KEY" in result.error.message
    assert len(model.requests) == 1


async def test_long_arguments_reach_the_tool_by_reference_and_enter_history_once(
    working: Working, workspace: Path
) -> None:
    content = "a long line of text\n" * 2500
    write = ToolUse("write_file", {"path": "long.txt", "content": content})
    loom, _ = await working(script([calls(write), text("ok")]))

    run_id = await loom.start(permissions={"write_file": "allow"})

    assert (await loom.client.result(run_id)).output == "ok"
    assert (workspace / "long.txt").read_text() == content
    (history,) = await loom.histories(run_id)
    assert sum(event.ByteSize() for event in history.events) < 1.5 * len(content)


BROKEN = {
    "half a surrogate pair": b'{"task": "cut \\ud83d emoji"}',
    "not JSON": b"{bad",
    "a number of 5,000 digits": b'{"task": "x", "max_turns": ' + b"9" * 5000 + b"}",
    "nested 900 deep": b'{"task": "x", "metadata": {"a": ' + b"[" * 900 + b"]" * 900 + b"}}",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
async def test_input_that_nobody_can_read_is_refused_instead_of_retried_for_ever(working: Working, data: bytes) -> None:
    loom, _ = await working(script([text("ok")]))
    payload = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))
    run_id = f"test-{uuid4().hex[:8]}"
    await loom.client.temporal.start_workflow("AgentRun", payload, id=run_id, task_queue=loom.settings.task_queue)
    loom.started.append(run_id)

    # Temporal would try a task that fails again and again, and the run would never end.
    result = await asyncio.wait_for(loom.client.result(run_id), HANGS_AFTER)

    assert result.error is not None
    assert result.error.type == "BadRequest"


async def test_ids_and_arguments_of_any_length_and_depth_end_no_run(working: Working, workspace: Path) -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    odd = calls(ToolUse("list_dir", {"path": "."}, "c" * 5000), ToolUse("list_dir", {"path": deep}, "d"))
    loom, model = await working(script([odd, text("ok")]))

    result = await loom.run()

    assert result.output == "ok"
    first, second = (m for m in model.requests[1].messages if m["role"] == "tool")
    assert first["tool_call_id"] == model.requests[1].messages[-3]["tool_calls"][0]["id"]
    assert len(first["tool_call_id"]) <= 40
    assert "not a JSON object" in second["content"]


@pytest.mark.parametrize("named", ["/" + "a" * 300, "~nobody-of-that-name/x", "relative/path"])
async def test_a_workspace_that_cannot_be_is_refused(working: Working, named: str) -> None:
    loom, _ = await working(script([text("never")]))

    result = await loom.run_unseen(workspace=named)

    assert result.error is not None
    assert (result.error.type, "workspace" in result.error.message) == ("BadRequest", True)
