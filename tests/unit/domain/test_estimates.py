"""What a run will probably take, from the results of past runs."""

from dataclasses import replace
from statistics import median
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.history.estimates import PastRun, RunEstimate, Spread, estimate_of, spread_of

RESULT: Final = RunResult(
    status=RunStatus.COMPLETED,
    output="done",
    structured_output=None,
    completed_explicitly=False,
    turns=2,
    usage={"total_tokens": 100},
    cost=0.5,
    quality_metrics=None,
    tool_calls=1,
    artifacts=(),
    error=None,
)


def test_without_past_runs_nothing_is_estimated() -> None:
    nothing = dict.fromkeys(("cost", "tokens", "turns", "seconds"))
    assert estimate_of("writer", None, []) == RunEstimate(agent="writer", model=None, runs=0, unknown=0, **nothing)


def test_a_run_with_an_unknown_cost_is_counted_apart() -> None:
    runs = [PastRun(result=RESULT, seconds=9), PastRun(result=replace(RESULT, cost=None, turns=4), seconds=3)]
    found = estimate_of("writer", "m", runs)
    assert (found.runs, found.unknown, found.cost) == (2, 1, Spread(low=0.5, median=0.5, high=0.5))
    assert found.seconds == Spread(low=3, median=6, high=9)
    assert found.tokens == Spread(low=100, median=100, high=100)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_one_run_in_ten_lies_beyond_each_end_of_a_spread(figures: list[float]) -> None:
    spread = spread_of(figures)
    assert spread is not None
    assert {spread.low, spread.high} <= set(figures)
    assert spread.median == median(figures)
    assert spread.low <= spread.median <= spread.high
    beyond = round(len(figures) / 10)
    for outside in (sum(each < spread.low for each in figures), sum(each > spread.high for each in figures)):
        assert outside <= beyond
