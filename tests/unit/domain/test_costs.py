"""Costs added up, so that no tree is counted twice or in part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.history.costs import CostKey, RunCost, cost_key, costs_of


def run(run_id: str, cost: float | None, group: str = "a", *, is_running: bool = False) -> RunCost:
    return RunCost(run_id=run_id, root_run_id=run_id.partition("/")[0], group=group, cost=cost, is_running=is_running)


def test_a_parent_counts_without_its_sub_agents() -> None:
    runs = [run("r", 1.0, "writer"), run("r/x", 0.6, "finder"), run("r/x/y", 0.1, "writer"), run("s", 0.5, "writer")]
    found = costs_of(runs, CostKey.AGENT)
    assert [(group.name, group.cost, group.runs, group.sub_agents) for group in found.groups] == [
        ("writer", 1.0, 3, 1),
        ("finder", 0.5, 1, 1),
    ]
    assert found.total.cost == 1.5


def test_unknown_prices_and_runs_in_progress_are_counted_apart() -> None:
    found = costs_of([run("r", None), run("s", None, is_running=True), run("t", 0.25)], CostKey.AGENT)
    assert (found.total.cost, found.total.unknown, found.total.running, found.total.runs) == (0.25, 1, 1, 3)


def test_a_sub_agent_whose_root_is_not_in_the_period_is_left_out() -> None:
    assert costs_of([run("old/x", 0.5)], CostKey.AGENT).total.runs == 0


def test_days_are_in_their_order() -> None:
    found = costs_of(
        [run("r", 0.5, "2026-05-02"), run("s", 1.0, "2026-05-03"), run("t", 0.1, "2026-05-01")], CostKey.DAY
    )
    assert [group.name for group in found.groups] == ["2026-05-01", "2026-05-02", "2026-05-03"]


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(BadRequest, match="'colour' is not one of agent, session, tenant, user, model, day"):
        cost_key("colour")


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.sampled_from("abc")), max_size=8))
def test_groups_add_up_to_the_roots(trees: list[tuple[int, int, str]]) -> None:
    runs = []
    for number, (own, below, group) in enumerate(trees):
        runs += [run(f"r{number}", (own + below) / 100), run(f"r{number}/x", below / 100, group)]
    found = costs_of(runs, CostKey.AGENT)
    assert sum(group.cost for group in found.groups) == pytest.approx(sum(own + below for own, below, _ in trees) / 100)
