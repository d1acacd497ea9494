"""Compressing on a real server: the run goes on, steering works meanwhile, and everything replays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loom.domain.context.summary_sections import SECTIONS
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_replies import Reply, SeenRequest
from loom.testing.model_server import ToolUse, calls, context_length, hang, status, text
from loom.testing.stream import assert_whole, texts, told
from tests.integration.workflows.conftest import Working

READ = ToolUse("read_file", {"path": "long.txt"})
WORDS = "".join(f"line {n} has some words in it\n" for n in range(200))
SUMMARY = "\n".join(f"<{name}>what matters of {name}</{name}>" for name in SECTIONS)
SMALL = {"context_window": 11_400, "collapse_at": 1.0}


def is_about_compressing(request: SeenRequest) -> bool:
    """Whether the model is asked to sum up."""
    return "You keep the memory of an agent" in str(request.messages[0]) + str(request.body.get("system"))


def long_talk(turns: int, summary: Reply, *, answer: str = "finished") -> Any:
    """So many turns that read a long file, whatever is left of them in the context; `summary` when asked to sum up."""
    made = 0

    def reply(request: SeenRequest) -> Reply:
        nonlocal made
        if is_about_compressing(request):
            return summary
        made += 1
        return text(answer) if made > turns else calls(READ)

    return reply


def compressions(events: Any) -> list[Any]:
    """What the stream says of compressions."""
    return [event.task.parameters for event in events if event.task.action is Action.COMPRESSION]


@pytest.fixture
def workspace(workspace: Path) -> Path:
    """A workspace with a long file."""
    (workspace / "long.txt").write_text(WORDS)
    return workspace


@pytest.mark.parametrize("model", ["openai:scripted", pytest.param("anthropic:scripted", marks=pytest.mark.slow)])
async def test_a_full_window_is_compressed_and_the_run_goes_on(working: Working, model: str) -> None:
    loom, server = await working(long_talk(12, text(SUMMARY)), model=model, **SMALL)

    result = await loom.run("read it often")

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "finished", 13)
    events = await told(loom.client, loom.started[0])
    assert_whole(events)
    done = compressions(events)
    assert done
    assert all(said["success"] and said["trigger"] == "window" for said in done)
    assert all(said["post_tokens"] <= 0.75 * said["pre_tokens"] for said in done)
    assert result.usage["model_calls"] == 13 + len(done)
    report = await loom.client.report(loom.started[0])
    assert report.total.model_calls == sum(turn.spending.model_calls for turn in report.turns) == 13 + len(done)
    assert report.total.input_tokens + report.total.output_tokens == result.usage["total_tokens"]
    last = str(server.requests[-1].body)
    assert "what matters of key_decisions" in last
    assert "read it often" in last
    asked = next(request for request in server.requests if is_about_compressing(request))
    assert not asked.body.get("tools")


async def test_a_model_that_cannot_sum_up_does_not_stop_the_run(working: Working) -> None:
    # Only the calls that sum up fail, so the breaker would stop the others, too.
    loom, server = await working(long_talk(12, status(503, retry_after=0.05)), breaker_failures="off", **SMALL)

    result = await loom.run("read it often", patience=0.5)

    assert (result.status, result.turns) == (RunStatus.COMPLETED, 13)
    (first, *_) = compressions(await told(loom.client, loom.started[0]))
    assert (first["success"], first["error"]) == (False, "the model could not be used")
    assert first["post_tokens"] <= 0.75 * first["pre_tokens"]
    assert "read_file ×" in str(server.requests[-1].messages)


async def test_sections_that_are_too_long_are_sent_back_once(working: Working) -> None:
    long = text(SUMMARY.replace("what matters of key_decisions", "word " * 3000))
    loom, server = await working(long_talk(8, long), **SMALL)

    await loom.run("read it often")

    asked = [request for request in server.requests if is_about_compressing(request)]
    assert len(asked) == 2 * len(compressions(await told(loom.client, loom.started[0])))
    assert "Shorten each of these sections" in str(asked[1].messages[-1])
    assert "word " * 513 not in str(server.requests[-1].messages)


@pytest.mark.slow
async def test_the_limit_that_a_provider_names_is_kept_from_then_on(working: Working) -> None:
    talk = long_talk(25, text(SUMMARY))

    def reply(request: SeenRequest) -> Reply:
        tokens = len(str(request.messages)) // 4
        return context_length(tokens, 14_000) if tokens > 14_000 else talk(request)

    loom, _ = await working(reply, collapse_at=1.0)

    result = await loom.run("read it often")

    assert result.status is RunStatus.COMPLETED
    triggers = [said["trigger"] for said in compressions(await told(loom.client, loom.started[0]))]
    assert triggers[0] == "provider"
    assert set(triggers[1:]) <= {"window"}


async def test_a_summary_that_is_not_covered_is_made_without_the_model(working: Working) -> None:
    talk = long_talk(4, text(SUMMARY))

    def reply(request: SeenRequest) -> Reply:
        said: Reply = talk(request)
        return replace(said, usage=(38_000, 5, 0)) if request.index == 3 else said

    loom, server = await working(reply, **SMALL)

    result = await loom.run("read it often", budget={"tokens": 60_000})

    assert (result.status, result.output) == (RunStatus.COMPLETED, "finished")
    assert not [request for request in server.requests if is_about_compressing(request)]
    told_of = compressions(await told(loom.client, loom.started[0]))
    assert {said["error"] for said in told_of} == {"the remaining budget may not cover the call"}


async def test_what_summaries_use_counts(working: Working) -> None:
    loom, server = await working(long_talk(12, text(SUMMARY)), **SMALL)

    result = await loom.run("read it often", budget={"tokens": 500_000})

    assert [request for request in server.requests if is_about_compressing(request)]
    assert result.usage["model_calls"] == len(server.requests)


async def test_an_abort_stops_a_compression(working: Working) -> None:
    loom, server = await working(long_talk(12, hang()), **SMALL)
    run_id = await loom.start("read it often")
    await loom.until(run_id, lambda seen: seen["waiting_on"] == "compression")

    await loom.client.abort(run_id, reason="enough")

    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
    assert server.requests[-1].disconnected


async def test_a_run_that_is_paused_while_it_compresses_goes_on_after(working: Working) -> None:
    loom, _ = await working(long_talk(12, text(SUMMARY, chunks=20, delay=0.05)), **SMALL)
    run_id = await loom.start("read it often")
    await loom.until(run_id, lambda seen: seen["waiting_on"] == "compression")

    await loom.client.pause(run_id)
    await loom.client.send(run_id, "in blue", by="ann")
    await loom.until(run_id, lambda seen: seen["context"]["compressions"] == 1)
    await loom.client.resume(run_id)

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert "in blue" in [m.text for m in await loom.client.transcript(run_id)]


@pytest.mark.slow
async def test_a_compressed_conversation_survives_rotation(working: Working) -> None:
    loom, _ = await working(long_talk(30, text(SUMMARY)), rotate_after_events=100, **SMALL)

    result = await loom.run("read it often", max_turns=40)

    assert (result.status, result.turns) == (RunStatus.COMPLETED, 31)
    assert len(await loom.histories(loom.started[0])) > 1
    assert texts(await told(loom.client, loom.started[0]))[31] == "finished"


@pytest.mark.slow
async def test_no_byte_of_the_conversation_is_written_to_history_again(working: Working) -> None:
    loom, _ = await working(long_talk(30, text(SUMMARY)), **SMALL)
    await loom.run("read it often")

    (history,) = await loom.histories(loom.started[0])
    events = [event.SerializeToString() for event in history.events]
    assert sum(b"compress_context" in event for event in events) >= 2
    assert sum(event.count(b"line 150 has some words") for event in events) == 30
