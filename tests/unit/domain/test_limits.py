"""What a run may use up, and what it says when it has."""

from dataclasses import replace

import pytest

from loom.domain.core.messages import Usage
from loom.domain.core.requests import Budget, RunRequest
from loom.domain.machine.limits import limit_hit, warning, with_share_and_limits
from loom.domain.machine.transitions import start
from loom.domain.run.state import RunState, Spending
from loom.domain.tree.budget import Share
from loom.domain.tree.lineage import Lineage, TreeLimits
from tests.unit.domain.story import AT, SPEC, at, told


def spent(
    turn: int = 0, tokens: int = 0, micros: int | None = 0, calls: int = 0, budget: Budget | None = None
) -> RunState:
    """A run that has used up so much."""
    state = told(budget=budget or Budget(), max_turns=10)
    spending = Spending(usage=Usage(input_tokens=tokens), cost_micros=micros, tool_calls=calls)
    return replace(state, turn=turn, spending=spending)


@pytest.mark.parametrize(
    "state",
    [
        spent(turn=9, tokens=10**9, micros=10**9, calls=10**6),
        spent(tokens=99, budget=Budget(tokens=100)),
        spent(micros=999_999, budget=Budget(cost_usd=1.0)),
        spent(micros=None, budget=Budget(cost_usd=0.01)),
        spent(calls=4, budget=Budget(tool_calls=5)),
    ],
)
def test_a_run_below_its_limits_goes_on(state: RunState) -> None:
    assert limit_hit(state, at(3600)) is None


@pytest.mark.parametrize(
    ("state", "limit", "message"),
    [
        (spent(turn=10), "max_turns", "stopped after 10 turns without a final answer."),
        (spent(tokens=2_000_000, budget=Budget(tokens=1_500_000)), "tokens", "2000000 of 1500000"),
        (spent(micros=1_250_000, budget=Budget(cost_usd=1.25)), "cost_usd", "1.25 of 1.25"),
        (spent(micros=12, budget=Budget(cost_usd=0.00001)), "cost_usd", "0.000012 of 0.00001"),
        (spent(calls=7, budget=Budget(tool_calls=5)), "tool_calls", "7 of 5"),
        (spent(budget=Budget(seconds=90)), "seconds", "90.5 of 90"),
    ],
)
def test_a_run_at_a_limit_says_which_and_how_much(state: RunState, limit: str, message: str) -> None:
    outcome = limit_hit(state, at(90.5))
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.context["limit"] == limit
    assert message in outcome.error.message


def test_a_run_without_a_limit_of_its_own_has_its_agents() -> None:
    state = replace(told(spec=replace(SPEC, max_turns=3)), turn=3)
    assert limit_hit(state, AT) is not None
    assert limit_hit(replace(told(max_turns=4, spec=replace(SPEC, max_turns=3)), turn=3), AT) is None


@pytest.mark.parametrize(
    ("state", "names"),
    [
        (spent(turn=7), None),
        (spent(turn=8), "turns: 8 of 10"),
        (spent(tokens=79, budget=Budget(tokens=100)), None),
        (spent(tokens=80, calls=4, budget=Budget(tokens=100, tool_calls=5)), "tokens: 80 of 100, tool_calls: 4 of 5"),
        (spent(budget=Budget(seconds=100)), "seconds: 80 of 100"),
        (replace(spent(turn=9), spending=Spending(warned=True)), None),
    ],
)
def test_the_model_is_warned_once_at_four_fifths(state: RunState, names: str | None) -> None:
    assert warning(state, at(80)) == (names and f"Nearly spent — {names}. Come to a conclusion soon.")


def test_a_sub_agent_is_not_hurried_by_what_it_was_lent() -> None:
    lineage = Lineage(parent_run_id="run-1", root_run_id="run-1", depth=1, limits=TreeLimits(), share=Share(tokens=100))
    child = start("run-1/d1", RunRequest(task="x", max_turns=10), AT, lineage)
    child = replace(child, spending=Spending(usage=Usage(output_tokens=90)))
    child = replace(child, tree=with_share_and_limits(child.tree, Budget(), TreeLimits()))
    assert warning(child, AT) is None
    assert "turns: 8 of 10" in (warning(replace(child, turn=8), AT) or "")
