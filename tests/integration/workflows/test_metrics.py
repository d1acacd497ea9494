"""What a worker's endpoint says after twenty runs, beside what the results of these runs say."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from loom.activities.metering import BUCKETS
from loom.composition import gauges
from loom.domain.core import metrics
from loom.domain.core.model_prices import ModelPrice
from loom.domain.core.requests import RunResult
from loom.stack.ports import any_free
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, status, text
from loom.testing.waiting import eventually
from loom.workflows import measured_runs
from tests.delegation_app import app
from tests.integration.workflows.conftest import Working
from tests.scraping import Scrape, scraped
from tests.trees import by_task, delegate
from tests.unit.house.test_monitoring import SDK

LOOK = ToolUse("list_dir", {"path": "."})
NOTE = ToolUse("write_file", {"path": "note.txt", "content": "x"})
SCRIPTS = {
    "child one": [calls(ToolUse("glob", {"pattern": "*"})), text("one")],
    "child two": [text("two")],
    "plain": [replace(calls(LOOK), usage=(10, 5, 4)), text("done")],
    "wrong": [calls(ToolUse("read_file", {"path": "nowhere.txt"}), ToolUse("frobnicate_42"), NOTE), text("done")],
    "invalid": [calls(ToolUse("read_file", {"pfad": 1})), text("done")],
    "approval": [calls(NOTE), text("done")],
    "endless": [calls(LOOK)],
    "broken": [text("mended")],
    "family": [
        calls(delegate("one", "child one", agent="forecaster"), delegate("two", "child two", agent="writer")),
        text("both done"),
    ],
}

DID_NOT_HAPPEN = (
    metrics.FALLBACKS,
    metrics.PERMIT_WAIT,
    metrics.RECOVERIES,
    metrics.COMPRESSIONS,
    metrics.COMPRESSION_RATIO,
    metrics.STREAM_DROPS,
    metrics.SPANS_DROPPED,
    metrics.TRACE_LAG,
)
"""What none of these runs has: other tests count it."""


async def test_a_run_that_cannot_be_measured_goes_on(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Mock(side_effect=ValueError("a counter can't count down"))
    monkeypatch.setattr(measured_runs, "measured", failing)
    loom, _ = await working(script([calls(LOOK), text("done")]), metrics_port=any_free())
    assert (await loom.run()).output == "done"
    assert failing.call_count > 1


async def test_the_counters_of_a_worker_add_up_to_the_results_of_its_runs(
    working: Working, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker caches only two runs, so that it replays the others again and again."""
    monkeypatch.setattr(gauges, "EVERY", 0.2)
    port, away = any_free(), Counter[str]()

    def answer(request: SeenRequest) -> Reply:
        task = str(request.messages[1]["content"])
        if "parked" in task and request.turn == 1 and away[task] < 1:
            away[task] += 1
            return status(503, retry_after=60)
        if task == "broken" and away[task] < 1:
            away[task] += 1
            return status(401)
        if "parked" in task:
            return [calls(LOOK), text("done")][min(request.turn, 1)]
        return by_task(SCRIPTS)(request)

    loom, _ = await working(
        answer,
        metrics_port=port,
        app=app,
        memory="on",
        max_cached_workflows=20,
        model_attempts=1,
        prices={"openai:scripted": ModelPrice(input=3.0, output=15.0)},
    )
    ask = {"write_file": "ask", "default": "allow"}
    deny = {"write_file": "deny", "default": "allow"}
    asking = [await loom.start("approval", permissions=ask) for _ in range(4)]
    parked = [await loom.start(f"parked {number}") for number in range(2)]
    others = [
        *[await loom.start(f"plain {number}") for number in range(7)],
        await loom.start("wrong", permissions=deny),
        await loom.start("invalid"),
        broken := await loom.start("broken"),
        *[await loom.start("endless", max_turns=2) for _ in range(2)],
        *[await loom.start("family") for _ in range(2)],
    ]
    for run_id in asking:
        await loom.asked(run_id)
    waiting = await eventually(lambda: measured(port, asks=4))
    assert 0 < waiting.total("loom_oldest_ask_age_seconds") < 60
    await loom.client.approve(asking[0])
    await loom.client.deny(asking[1], reason="no")
    await loom.client.deny(asking[2], reason="no")
    await loom.client.abort(asking[3])
    for run_id in parked:
        await loom.until(run_id, lambda seen: seen["waiting_on"] == "provider")
        await loom.client.retry(run_id)

    results = list(await asyncio.gather(*(loom.client.result(run_id) for run_id in (*asking, *parked, *others))))
    children = [each for root in others for each in await loom.below(root)]
    own = [*results, *[await loom.client.result(each) for each in children]]
    agents = [(await loom.client.status(run_id))["agent"] for run_id in (*asking, *parked, *others, *children)]
    seen = await eventually(lambda: measured(port, asks=0))

    assert len(results) == 20
    assert Counter(each.status.value for each in own) == {
        "completed": 20,
        "limit_reached": 2,
        "failed": 1,
        "aborted": 1,
    }
    check_runs(seen, list(zip(agents, own, strict=True)))
    check_models(seen, results)
    check_tools(seen, results)
    check_waits(seen)
    await loom.client.retry(broken)
    assert (await loom.client.result(broken)).output == "mended"
    seen = scraped(port)
    assert seen.total("loom_runs_reopened_total", agent="default") == 1
    # The reset executes the end of the failed call again. The call is counted once, and each of the run's ends.
    assert seen.total("loom_llm_calls_total", outcome="LLMConfigurationError") == 1
    assert seen.by("loom_runs_total", "status")[("failed",)] == 1
    assert seen.by("loom_runs_total", "status")[("completed",)] == 21
    check_names(seen)


async def measured(port: int, *, asks: int) -> Scrape | None:
    """What the endpoint says once the worker has seen that many calls wait."""
    seen = scraped(port)
    runs = seen.total("loom_waiting_runs", waiting_on="approval")
    settled = asks > 0 or (seen.of("loom_active_agents") and seen.total("loom_active_agents") == 0)
    return seen if seen.of("loom_open_asks") and settled and runs == seen.total("loom_open_asks") == asks else None


def check_runs(seen: Scrape, own: list[tuple[str, RunResult]]) -> None:
    ended = seen.by("loom_runs_total", "agent", "status")
    assert ended == Counter((agent, each.status.value) for agent, each in own)
    assert seen.by("loom_run_duration_seconds_count", "agent", "status") == ended
    began = seen.by("loom_runs_started_total", "agent")
    assert began == seen.by("loom_time_to_first_turn_seconds_count", "agent") == Counter((agent,) for agent, _ in own)
    turns = Counter({(agent,): sum(each.turns for name, each in own if name == agent) for agent, _ in own})
    assert seen.by("loom_iterations_total", "agent") == turns
    assert seen.by("loom_iteration_duration_seconds_count", "agent") == turns
    assert seen.total("loom_active_agents") == 0


def check_models(seen: Scrape, results: list[RunResult]) -> None:
    """The result of a run counts what its sub-agents have used, too."""
    calls_made = seen.by("loom_llm_calls_total", "provider", "model", "outcome")
    assert calls_made == {
        ("openai", "scripted", "answered"): sum(each.usage["model_calls"] for each in results),
        ("openai", "scripted", "LLMConfigurationError"): 1,
        ("openai", "scripted", "LLMUnavailableError"): 2,
    }
    assert seen.by("loom_llm_call_duration_seconds_count", "provider", "model", "outcome") == calls_made
    assert seen.total("loom_tokens_total", kind="input") == sum(each.usage["input_tokens"] for each in results)
    assert seen.total("loom_tokens_total", kind="output") == sum(each.usage["output_tokens"] for each in results)
    assert seen.total("loom_tokens_total", kind="cached") == sum(each.usage["cached_tokens"] for each in results) > 0
    assert seen.total("loom_cost_micro_usd_total") == round(1e6 * sum(each.cost or 0.0 for each in results))
    assert seen.total("loom_llm_time_to_first_token_seconds_count") == 20
    assert seen.total("loom_retries_total", kind="model") == 2
    assert seen.total("loom_context_tokens_count") == calls_made["openai", "scripted", "answered"]


def check_tools(seen: Scrape, results: list[RunResult]) -> None:
    statuses = seen.by("loom_tool_calls_total", "tool_name", "status")
    ran = sum(count for (_, status), count in statuses.items() if status in ("success", "warning", "error"))
    assert ran == sum(each.tool_calls for each in results)
    assert statuses == {
        ("list_dir", "success"): 7 + 2 + 2,
        ("list_dir", "aborted"): 2,  # asked for in the last turn
        ("glob", "success"): 2,
        ("read_file", "error"): 1,
        ("read_file", "refused"): 1,
        (metrics.UNKNOWN, "refused"): 1,
        ("write_file", "denied"): 3,
        ("write_file", "success"): 1,
        ("write_file", "aborted"): 1,
        ("delegate_task", "success"): 4,
    }
    assert seen.by("loom_tool_execution_duration_seconds_count", "tool_name", "status") == {
        key: count for key, count in statuses.items() if key[1] in ("success", "error") and key[0] != "delegate_task"
    }


def check_waits(seen: Scrape) -> None:
    assert seen.by("loom_asks_total", "tool_name") == {("write_file",): 4}
    assert seen.by("loom_ask_wait_seconds_count", "decision") == {("approved",): 1, ("denied",): 2, ("withdrawn",): 1}
    assert seen.by("loom_parked_total", "waiting_on") == {("provider",): 2}
    assert seen.by("loom_parked_seconds_count", "waiting_on") == {("provider",): 2}


def check_names(seen: Scrape) -> None:
    """The endpoint serves what is in the one list, with its labels, and nothing else."""
    known = {
        f"{each.name}{ending}": {*each.labels, *(("le",) if ending == "_bucket" else ())}
        for each in metrics.ALL
        for ending in (("_bucket", "_sum", "_count") if each.kind == "histogram" else ("",))
    }
    ours = [each for each in seen.samples if each.name.startswith("loom_")]
    assert known.keys() - {each.name for each in ours} == {
        series for series in known if series.startswith(tuple(each.name for each in DID_NOT_HAPPEN))
    }
    assert {each.name for each in ours} <= known.keys()
    assert all(each.labels.keys() - {"service_name"} == known[each.name] for each in ours)
    assert {each.name for each in seen.samples} >= SDK
    bounds = {each.labels["le"] for each in seen.of("loom_run_duration_seconds_bucket")}
    assert bounds == {*(f"{bound:g}" for bound in BUCKETS["loom_run_duration_seconds"]), "+Inf"}
