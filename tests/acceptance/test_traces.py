"""Traces as a receiver gets them: one for a tree of runs, whichever workers served it."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loom.domain.core.requests import RunResult, RunStatus
from loom.stack.ports import any_free
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, hang, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable
from tests.acceptance.test_command_line import command_line
from tests.otlp_receiver import Receiver, attributes, receiving
from tests.scraping import Scrape, scraped
from tests.trees import by_task, delegate

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
"""Spans are exported after 0.2 instead of 5 seconds."""
TREE = {
    "child one": [calls(ToolUse("bash", {"command": "echo a secret > out.txt"})), text("written")],
    "child two": [calls(ToolUse("glob", {"pattern": "*"})), text("seen")],
    "the root": [calls(delegate("write", "child one", tools=["bash"]), delegate("look", "child two")), text("done")],
}


@pytest.mark.slow
async def test_a_run_with_two_sub_agents_whose_worker_was_killed_has_one_complete_trace(killable: Killable) -> None:
    async with receiving() as receiver:
        hung: list[SeenRequest] = []

        def answer(request: SeenRequest) -> Reply:
            if "child two" in str(request.messages) and request.turn == 1 and not hung:
                hung.append(request)
                return hang()
            return by_task(TREE)(request)

        loom, _, workers = await killable(answer)
        exports, ports = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **SOON}, (any_free(), any_free())
        worker = await workers.start(**exports, LOOM_METRICS_PORT=str(ports[0]))
        run_id = await loom.start("the root")
        await loom.asked(run_id)
        await eventually(lambda: _has(hung))
        killed = scraped(ports[0])
        await workers.kill(worker)
        await workers.start(**exports, LOOM_METRICS_PORT=str(ports[1]))
        await loom.client.approve(run_id)
        result = await loom.client.result(run_id)
        assert result.status is RunStatus.COMPLETED

        await eventually(lambda: _has([span for span in receiver.spans if not span.parent_span_id]))
        check_counters(killed, scraped(ports[1]), result)

    spans = receiver.spans
    assert Counter(span.name for span in spans) == {
        "invoke_agent default": 3,
        "chat scripted": 6,
        "execute_tool delegate_task": 2,
        "execute_tool bash": 1,
        "wait_for_approval bash": 1,
        "execute_tool glob": 1,
    }
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == len(spans)
    assert receiver.services == {"loom"}
    check_parents(receiver)
    check_conventions(receiver)
    (chat,) = [each for each in receiver.named("chat scripted") if attributes(each)["loom.attempt"] == 2]
    assert attributes(chat)["gen_ai.usage.input_tokens"] == 10
    (waited,) = receiver.named("wait_for_approval bash")
    (wrote,) = receiver.named("execute_tool bash")
    assert waited.start_time_unix_nano < waited.end_time_unix_nano <= wrote.end_time_unix_nano
    assert "a secret" not in str(spans)
    check_log_lines(workers.log(1), receiver)


def check_counters(killed: Scrape, other: Scrape, result: RunResult) -> None:
    """What both workers have counted adds up to the result: the second one has replayed what the first one did."""

    def both(name: str, **labels: str) -> float:
        return killed.total(name, **labels) + other.total(name, **labels)

    assert both("loom_llm_calls_total", outcome="answered") == result.usage["model_calls"]
    assert both("loom_tokens_total", kind="input") == result.usage["input_tokens"]
    assert both("loom_tool_calls_total", status="success") == result.tool_calls
    assert both("loom_runs_started_total") == both("loom_runs_total", status="completed") == 3
    assert both("loom_recoveries_total") == other.total("loom_recoveries_total", kind="model") == 1


async def _has(found: Sequence[object]) -> bool:
    return bool(found)


def searches(receiver: Receiver) -> list[Span]:
    """The searches in the session's memory."""
    found = receiver.named("search_memory")
    return [each for each in found if attributes(each)["loom.memory.source"] == "SessionMemory"]


def check_parents(receiver: Receiver) -> None:
    """Each span lies below what it belongs to, and within its time."""
    root = min((str(attributes(span)["loom.run.id"]) for span in receiver.spans), key=len)
    for span in receiver.spans:
        above = receiver.parent_of(span)
        if not span.parent_span_id:
            assert attributes(span)["loom.run.id"] == root
            continue
        assert above is not None, span.name
        expected = "execute_tool delegate_task" if span.name.startswith("invoke_agent") else "invoke_agent"
        assert above.name.startswith(expected)
        assert above.start_time_unix_nano <= span.start_time_unix_nano, span.name
        if not span.name.startswith("invoke_agent"):
            assert attributes(span)["loom.run.id"] == attributes(above)["loom.run.id"]


def check_conventions(receiver: Receiver) -> None:
    """Each operation has the attributes that the GenAI conventions require, and the name that follows from them."""
    required = {
        "invoke_agent": ("gen_ai.agent.name", "gen_ai.provider.name", "gen_ai.request.model"),
        "chat": ("gen_ai.request.model", "gen_ai.provider.name", "gen_ai.usage.input_tokens"),
        "execute_tool": ("gen_ai.tool.name", "gen_ai.tool.call.id"),
    }
    for span in receiver.spans:
        has = attributes(span)
        if (operation := str(has.get("gen_ai.operation.name", ""))) in required:
            names = required[operation]
            assert span.name == f"{operation} {has[names[0]]}"
            assert has.keys() >= set(names), span.name
            assert has.get("gen_ai.provider.name", "openai") == "openai"


def check_log_lines(log: Path, receiver: Receiver) -> None:
    """The lines of a worker about a model call name its span."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    replied = {line["span_id"]: line["trace_id"] for line in lines if line.get("event") == "model_replied"}
    chats = {span.span_id.hex(): span.trace_id.hex() for span in receiver.named("chat scripted")}
    assert replied
    assert replied.items() <= chats.items()


async def test_spans_that_a_receiver_refuses_arrive_later_and_hold_content_if_a_worker_is_set_to(
    killable: Killable, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("alpha")
    async with receiving() as receiver:
        receiver.refuses = 1
        loom, _, workers = await killable(
            by_task({"read": [calls(ToolUse("read_file", {"path": "a.txt"})), text("it says alpha")]}), memory="on"
        )
        content = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
        await workers.start(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **content, **SOON)

        run_id = await loom.start("read a.txt", session_id=f"traced-{uuid4().hex}")
        await loom.client.result(run_id)
        await eventually(lambda: _has(receiver.named("invoke_agent default")))

        await eventually(lambda: _has(searches(receiver)))
        advice = await command_line(loom)("advise", run_id, "--json")

    assert receiver.refuses == 0
    searched = receiver.parent_of(searches(receiver)[0])
    assert searched is not None
    assert searched.name == "invoke_agent default"
    figures = json.loads(advice.out)["figures"]
    assert (figures["model_calls"], figures["tool_calls"], figures["tokens"]) == (2, 1, 30)
    (read,) = receiver.named("execute_tool read_file")
    assert json.loads(str(attributes(read)["gen_ai.tool.call.arguments"])) == {"path": "a.txt"}
    assert "alpha" in str(attributes(read)["gen_ai.tool.call.result"])
    assert "it says alpha" in str(attributes(receiver.named("invoke_agent default")[0])["gen_ai.output.messages"])
