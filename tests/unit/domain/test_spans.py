"""Spans from tasks: their ids, whichever worker builds them, and their times."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from loom.domain.core.tasks import Action, Origin, Segment, Task, span_id, task_of
from loom.domain.history.spans import (
    CACHE_WRITE_TOKENS,
    PROVIDER,
    REQUEST_MODEL,
    Place,
    execution_of,
    knows_duration,
    opening_of,
    run_span_id,
    span_of,
)

ROOT = Origin(run_id="r/with/slashes", execution="e1")
CHILD = Origin(run_id="r/with/slashes/d1-1", execution="e2", root_run_id="r/with/slashes", root_execution="e1")
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def task(origin: Origin, action: Action, key: str, after: float = 0.0, **given: Any) -> Task:
    return task_of(origin, action, key, at=AT + timedelta(seconds=after), **given)


def place_of(origin: Origin, start: Task | None = None) -> Place:
    return Place(trace_id=origin.trace_id, execution=origin.execution, start=start)


@pytest.mark.parametrize("origin", [ROOT, CHILD, replace(ROOT, execution="")])
def test_the_first_task_of_a_run_tells_its_execution(origin: Origin) -> None:
    assert execution_of(task(origin, Action.START, "t0/start")) == origin.execution


def test_a_tree_has_one_trace_and_another_run_with_the_same_id_has_another() -> None:
    assert CHILD.trace_id == ROOT.trace_id
    assert replace(ROOT, execution="e9").trace_id != ROOT.trace_id


def test_the_span_of_an_attempt_has_the_id_that_log_lines_show() -> None:
    replied = task(ROOT, Action.MODEL_CALL, "t3-model.2/call", 5, parameters={"model": "openai:m", "ms": 2000})

    span = span_of(replied, place_of(ROOT), None)

    assert span is not None
    assert span.span_id == ROOT.span_id(Segment(name="t3-model", attempt=2))
    assert span.parent_id == run_span_id(place_of(ROOT), ROOT.run_id)
    assert (span.name, span.begun, span.ended) == ("chat m", AT + timedelta(seconds=3), AT + timedelta(seconds=5))


def test_a_failed_call_began_with_its_turn() -> None:
    began = task(ROOT, Action.TURN, "t1-model.1/turn")
    failed = task(
        ROOT, Action.MODEL_CALL, "t1-model.1/call", 4, status="failed", parameters={"error": "E", "model": "m"}
    )

    wanted = opening_of(failed, place_of(ROOT))

    assert wanted is not None
    assert wanted(began)
    assert not wanted(task(ROOT, Action.TURN, "t1-model.2/turn"))
    span = span_of(failed, place_of(ROOT), began)
    assert span is not None
    assert (span.begun, span.error) == (AT, "E")


def test_a_sub_agent_lies_below_the_call_that_gave_it_its_work() -> None:
    given = task(ROOT, Action.EXECUTE, "delegate-c1")
    start = task(CHILD, Action.START, "t0/start", parent_task_id=given.task_id)
    said = {"call_id": "c1", "tool": "delegate_task", "child_run_id": CHILD.run_id}
    back = task(ROOT, Action.TOOL_RESULT, "n7", 9, status="success", parameters=said)
    end = task(CHILD, Action.COMPLETE, "end", 8, status="completed", result={"usage": {}, "retries": 0})

    above = span_of(back, place_of(ROOT), given)
    below = span_of(end, place_of(CHILD, start), None)

    wanted = opening_of(back, place_of(ROOT))
    assert wanted is not None
    assert wanted(given)
    assert not knows_duration(replace(back, result={"metadata": {"execution_time": 0}}))
    assert above is not None
    assert below is not None
    assert below.parent_id == above.span_id == span_id(ROOT.trace_id, given.task_id)
    assert (above.begun, above.ended) == (AT, AT + timedelta(seconds=9))


def test_what_follows_a_retry_of_an_ended_run_is_a_span_below_the_first_one() -> None:
    start = task(ROOT, Action.START, "t0/start")
    retried = task(ROOT, Action.RETRIED, "n4", 60)
    first = task(ROOT, Action.ERROR, "end", 5, status="failed", result={"error": {"type": "E"}})
    second = task(ROOT, Action.COMPLETE, "end-1", 70, result={"retries": 1})

    failed = span_of(first, place_of(ROOT, start), None)
    ended = span_of(second, place_of(ROOT, start), retried)

    assert failed is not None
    assert ended is not None
    assert (failed.parent_id, failed.error) == (None, "E")
    assert ended.parent_id == failed.span_id != ended.span_id
    assert ended.begun == retried.created_at


def test_a_run_names_the_provider_of_its_model_and_not_the_api() -> None:
    start = task(ROOT, Action.START, "t0/start", parameters={"model": "openai-responses:m"})
    end = task(ROOT, Action.COMPLETE, "end", 5, status="completed", result={"usage": {"cache_write_tokens": 7}})
    called = task(ROOT, Action.MODEL_CALL, "t1-model.1/call", 2, parameters={"model": "openai-responses:m", "ms": 9})

    spans = [span_of(each, place_of(ROOT, start), None) for each in (end, called)]

    assert [each and (each.attributes[PROVIDER], each.attributes[REQUEST_MODEL]) for each in spans] == [
        ("openai", "m")
    ] * 2
    assert spans[0] is not None
    assert spans[0].attributes[CACHE_WRITE_TOKENS] == 7


def test_tasks_that_end_nothing_have_no_span() -> None:
    assert span_of(task(ROOT, Action.TURN, "t1/turn"), place_of(ROOT), None) is None
