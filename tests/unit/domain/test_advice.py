"""Advice about runs: each rule at its limit, and figures from tasks."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.tasks import Action, Origin, Task, task_of
from loom.domain.history.advice import RunFigures, ToolFigures, advice_for, figures_of

ORIGIN = Origin(run_id="r", execution="e")
GOOD = RunFigures(
    model_calls=10,
    input_tokens=100_000,
    output_tokens=50_000,
    cached_tokens=60_000,
    tools={"grep": ToolFigures(calls=10, seconds=5.0)},
    turns_with_several_calls=2,
    parallel_turns=2,
)


def task(action: Action, key: str, status: str = "completed", *, result: Any = None, **parameters: Any) -> Task:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return task_of(ORIGIN, action, key, at=at, status=status, parameters=parameters, result=result)


def topics(figures: RunFigures) -> list[str]:
    return [each.topic for each in advice_for(figures)]


def test_a_run_within_all_limits_gets_no_advice() -> None:
    assert advice_for(GOOD) == ()


@pytest.mark.parametrize(
    ("changed", "topic"),
    [
        ({"output_tokens": 50_001}, "tokens"),
        ({"tools": {"grep": ToolFigures(calls=10, failed=3)}}, "tool_success"),
        ({"tools": {"grep": ToolFigures(calls=3, seconds=30.0)}}, "slow_tool"),
        ({"compressions": (0.81,)}, "compression"),
        ({"compressions": (0.49,)}, "compression"),
        ({"errors": {"timeout": 3}}, "errors"),
        ({"parallel_turns": 0}, "concurrency"),
        ({"cached_tokens": 29_999}, "cache"),
    ],
)
def test_each_limit_has_its_advice(changed: dict[str, Any], topic: str) -> None:
    assert topic in topics(replace(GOOD, **changed))


def test_calls_that_take_no_time_need_not_overlap() -> None:
    quick = {"list_dir": ToolFigures(calls=10, seconds=0.9)}
    assert topics(replace(GOOD, parallel_turns=0, tools=quick)) == []


def test_compressions_between_poor_and_good_get_no_advice() -> None:
    assert topics(replace(GOOD, compressions=(0.5, 0.8))) == []


def test_the_main_cause_of_errors_and_the_failing_tool_are_named() -> None:
    tools = {"fetch": ToolFigures(calls=5, failed=4), "grep": ToolFigures(calls=20)}

    said = {each.topic: each for each in advice_for(replace(GOOD, tools=tools, errors={"fetch: timeout": 4, "x": 1}))}

    assert "fetch: timeout (4 times)" in said["errors"].text
    assert (said["failing_tool"].tool, "4 of 5" in said["failing_tool"].text) == ("fetch", True)


def test_figures_count_the_tasks_of_a_stream() -> None:
    told = {"metadata": {"execution_time": 2.5, "error_type": "timeout"}}

    figures = figures_of(
        [
            task(Action.MODEL_CALL, "1", turn=1, input_tokens=10, output_tokens=5, cached_tokens=4),
            task(Action.TOOL_CALL, "2", turn=1, call_id="a", tool="grep"),
            task(Action.TOOL_CALL, "3", turn=1, call_id="b", tool="grep"),
            task(Action.TOOL_RESULT, "4", "error", turn=1, call_id="a", tool="grep", result=told),
            task(Action.TOOL_RESULT, "5", "success", turn=1, call_id="b", tool="grep", result={"metadata": {}}),
            task(Action.MODEL_CALL, "6", "failed", turn=2, error="LLMRateLimitError"),
            task(Action.COMPRESSION, "7", success=True, pre_tokens=100, post_tokens=40),
        ]
    )

    assert figures == RunFigures(
        model_calls=2,
        input_tokens=10,
        output_tokens=5,
        cached_tokens=4,
        tools={"grep": ToolFigures(calls=2, failed=1, seconds=2.5)},
        errors={"grep: timeout": 1, "LLMRateLimitError": 1},
        compressions=(0.4,),
        turns_with_several_calls=1,
        parallel_turns=1,
    )


FIGURES = st.builds(
    RunFigures,
    model_calls=st.integers(0, 50),
    input_tokens=st.integers(0, 10**6),
    tools=st.dictionaries(
        st.sampled_from(["a", "b"]), st.builds(ToolFigures, calls=st.integers(5, 9), failed=st.integers(0, 5))
    ),
    errors=st.dictionaries(st.sampled_from(["x", "y"]), st.integers(1, 5)),
)


@given(FIGURES, FIGURES)
def test_figures_of_several_runs_add_up_in_any_order(one: RunFigures, other: RunFigures) -> None:
    assert one + other == other + one
    assert (one + other).tool_calls == one.tool_calls + other.tool_calls
    advice_for(one + other)
