"""Where time, tokens and money went, from tasks alone."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.tasks import Action, Task
from loom.domain.history.run_report import ORDER, ReportSpan, RunReport, run_report, shares

START: Final = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def task(action: Action, seconds: float, status: str = "completed", result: Any = None, **parameters: Any) -> Task:
    return Task(
        task_id=f"r/{seconds}/{action}/{parameters.get('call_id', '')}",
        run_id="r",
        root_run_id="r",
        session_id="r",
        action=action,
        created_at=at(seconds),
        source_agent="writer",
        status=status,
        parameters=parameters,
        result=result,
    )


def model_call(seconds: float, turn: int, ms: float, **given: Any) -> Task:
    said = {"model": "m", "input_tokens": 100, "output_tokens": 10, "cached_tokens": 0, "cost": 0.5, **given}
    return task(Action.MODEL_CALL, seconds, turn=turn, attempt=1, ms=ms, **said)


def reported(tasks: Sequence[Task], *, now: float = 100.0) -> RunReport:
    return run_report(tasks, run_id="r", now=at(now), began=START)


ASKED: Final = [
    task(Action.START, 1, task="write"),
    task(Action.TURN, 2, to=1),
    model_call(4, 1, 2000),
    task(Action.APPROVAL_REQUESTED, 4, turn=1, call_id="w1", tool="write_file"),
    task(Action.APPROVAL_DECIDED, 14, call_id="w1", approved=True, by="ann"),
    task(Action.TOOL_CALL, 14, turn=1, call_id="w1", tool="write_file"),
    task(Action.TOOL_RESULT, 15, turn=1, call_id="w1", tool="write_file", status="error"),
    task(Action.TURN, 15, to=2),
    model_call(18, 2, 3000, cost=None),
    task(Action.COMPLETE, 20, result={"status": "completed", "cost": None, "usage": {}, "tool_calls": 1}),
]


def test_the_time_of_a_run_goes_to_what_it_did_and_waited_for() -> None:
    report = reported(ASKED)

    assert report.seconds == 20
    assert report.time == {"tool": 1.0, "model": 5.0, "approval": 10.0, "start": 1.0, "other": 3.0}
    assert [(turn.number, turn.seconds, turn.time) for turn in report.turns] == [
        (1, 13.0, {"tool": 1.0, "model": 2.0, "approval": 10.0}),
        (2, 5.0, {"model": 3.0, "other": 2.0}),
    ]
    assert [(tool.name, tool.calls, tool.failed, tool.seconds) for tool in report.tools] == [("write_file", 1, 1, 1.0)]
    (waited,) = [span for span in report.spans if span.kind == "approval"]
    assert (waited.seconds, waited.by, waited.status) == (10.0, "ann", "approved")


def test_an_unknown_price_is_counted_apart() -> None:
    report = reported(ASKED)
    assert (report.spending.cost, report.spending.unpriced, report.spending.model_calls) == (0.5, 1, 2)
    assert report.spending.input_tokens == 200


@pytest.mark.parametrize(
    ("error", "kind"),
    [("LLMUnavailableError", "retry"), ("NoPermitError", "permit"), ("CircuitBreakerOpenError", "permit")],
)
def test_the_time_until_another_attempt_is_a_wait(error: str, kind: str) -> None:
    tasks = [
        task(Action.START, 0),
        task(Action.TURN, 1, to=1),
        task(Action.MODEL_CALL, 3, "failed", turn=1, attempt=1, model="m", error=error),
        task(Action.TURN, 9, to=1),
        model_call(10, 1, 1000),
        task(Action.COMPLETE, 10),
    ]
    report = reported(tasks)
    assert report.time[kind] == (6.0 if kind == "retry" else 8.0)
    assert report.spending.failed == (kind == "retry")  # without a permit, no call was sent


def test_an_attempt_whose_worker_died_is_lost_time() -> None:
    tasks = [task(Action.TURN, 0, to=1), task(Action.TURN, 6, to=1), model_call(8, 1, 2000), task(Action.COMPLETE, 8)]
    assert reported(tasks).time == {"model": 2.0, "lost": 6.0}


def test_a_retried_run_counts_the_time_between_its_end_and_the_retry() -> None:
    tasks = [
        task(Action.TURN, 0, to=1),
        task(Action.MODEL_CALL, 1, "failed", turn=1, model="m", error="LLMConfigurationError"),
        task(Action.ERROR, 1, "failed", result={"status": "failed"}),
        task(Action.RETRIED, 61, by="ann"),
        task(Action.TURN, 61, to=1),
        model_call(63, 1, 2000),
        task(Action.COMPLETE, 63, result={"status": "completed"}),
    ]
    report = reported(tasks)
    assert (report.status, report.time["ended"], report.seconds) == ("completed", 60.0, 63.0)


def test_what_still_waits_lasts_until_the_report() -> None:
    report = reported(ASKED[:4], now=34)
    assert (report.status, report.time["approval"]) == ("running", 30.0)
    assert [span.kind for span in report.spans if span.is_open] == ["approval"]


def test_a_compression_spends_what_all_its_model_calls_used() -> None:
    used: dict[str, Any] = {"model": "small", "model_calls": 2, "input_tokens": 900, "output_tokens": 50, "cost": 0.25}
    compressed = task(Action.COMPRESSION, 5, success=True, duration_ms=3000, **used)
    tasks = [task(Action.TURN, 0, to=1), model_call(1, 1, 1000), compressed, task(Action.COMPLETE, 5)]
    report = reported(tasks)
    assert report.time == {"model": 1.0, "compression": 3.0, "other": 1.0}
    (small,) = [each.spending for each in report.models if each.name == "small"]
    assert (small.model_calls, small.input_tokens, small.output_tokens, small.cost) == (2, 900, 50, 0.25)
    assert (report.total.model_calls, report.total.input_tokens, report.total.cost) == (3, 1000, 0.75)
    without_model = task(Action.COMPRESSION, 6, success=False, duration_ms=0)
    assert reported([*tasks[:-1], without_model]).total == report.total


@pytest.mark.parametrize(("waiting_on", "kind"), [("provider", "provider"), ("operator", "operator")])
def test_a_parked_run_waits_until_it_goes_on_or_until_the_report(waiting_on: str, kind: str) -> None:
    failed: dict[str, Any] = {"turn": 1, "attempt": 1, "model": "m", "error": "LLMUnavailableError"}
    parked = [
        task(Action.START, 1),
        task(Action.TURN, 1, to=1),
        task(Action.MODEL_CALL, 2, "failed", **failed),
        task(Action.PARKED, 2, waiting_on=waiting_on, error="LLMUnavailableError"),
    ]
    still = reported(parked, now=32)
    assert (still.status, still.time) == ("running", {"model": 1.0, kind: 30.0, "start": 1.0})
    assert [(each.count, each.longest) for each in still.waits if each.kind == kind] == [(1, 30.0)]

    tried = [task(Action.TURN, 62, to=1), task(Action.MODEL_CALL, 63, "failed", **failed)]
    mended = [task(Action.TURN, 122, to=1), model_call(123, 1, 1000), task(Action.UNPARKED, 123, by="ann")]
    report = reported([*parked, *tried, *mended, task(Action.COMPLETE, 124)])
    assert report.time == {"model": 3.0, kind: 119.0, "start": 1.0, "other": 1.0}
    assert [(span.by, span.is_open) for span in report.spans if span.kind == kind] == [("ann", False)]


def test_a_sub_agent_is_reported_below_its_parent() -> None:
    begun = task(Action.EXECUTE, 1, turn=1, call_id="d", agent="finder", description="look", child_run_id="r/a")
    ended = task(Action.TOOL_RESULT, 5, "success", turn=1, call_id="d", tool="delegate_task", child_run_id="r/a")
    tasks = [task(Action.TURN, 0, to=1), model_call(1, 1, 1000), begun, ended, task(Action.COMPLETE, 5)]
    below = run_report([model_call(4, 1, 1000)], run_id="r", now=at(5))
    report = run_report(tasks, run_id="r", now=at(9), sub_agents={"r/a": below})

    (child,) = report.sub_agents
    assert (child.agent, child.seconds, child.report, report.time["sub_agent"]) == ("finder", 4.0, below, 4.0)
    assert (report.spending.model_calls, report.total.model_calls, report.total.cost) == (1, 2, 1.0)


def test_nothing_is_reported_of_a_run_without_tasks() -> None:
    report = reported([], now=5)
    assert (report.seconds, report.turns, report.spans, report.status) == (5.0, (), (), "running")


SPANS = st.builds(
    lambda kind, began, took: ReportSpan(kind=kind, label="", began=at(began), ended=at(began + took)),
    st.sampled_from(ORDER),
    st.integers(-5, 30),
    st.integers(0, 30),
)


@given(st.lists(SPANS), st.integers(0, 40))
def test_shares_add_up_to_the_whole_time(spans: list[ReportSpan], seconds: int) -> None:
    found = shares(spans, START, at(seconds))
    assert sum(found.values()) == pytest.approx(seconds)
    assert all(value > 0 for value in found.values())


ANY = st.builds(
    task,
    st.sampled_from(list(Action)),
    st.integers(0, 50),
    st.sampled_from(["completed", "failed", "error", "success"]),
    call_id=st.sampled_from(["", "a", "b"]),
    turn=st.integers(1, 3),
    to=st.integers(1, 3),
    ms=st.integers(0, 90_000),
)


@given(st.lists(ANY))
def test_any_tasks_give_a_report_whose_times_add_up(tasks: list[Task]) -> None:
    report = reported(tasks)
    assert sum(report.time.values()) == pytest.approx(report.seconds)
    for turn in report.turns:
        assert sum(turn.time.values()) == pytest.approx(turn.seconds)
