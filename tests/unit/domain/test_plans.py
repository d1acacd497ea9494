"""Plans: circles are found and named, and a plan becomes a crew of its steps."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.tree.plans import circle_in, crew_of

STEPS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


@st.composite
def orders(draw: st.DrawFn) -> dict[str, list[str]]:
    """Steps that wait only for earlier ones."""
    names = draw(STEPS)
    return {name: draw(st.lists(st.sampled_from(names[:n]), unique=True)) if n else [] for n, name in enumerate(names)}


@given(orders())
def test_an_order_that_works_out_has_no_circle(after: dict[str, list[str]]) -> None:
    assert circle_in(after) == ()


@given(orders(), st.data())
def test_a_circle_is_named_step_by_step(after: dict[str, list[str]], data: st.DataObject) -> None:
    ring = data.draw(st.lists(st.sampled_from(sorted(after)), unique=True, min_size=1))
    closed = {name: list(before) for name, before in after.items()}
    for name, following in zip(ring, [*ring[1:], ring[0]], strict=True):
        closed[name].append(following)
    circle = circle_in(closed)
    assert circle[0] == circle[-1]
    assert len(circle) > 1
    assert all(later in closed[earlier] for earlier, later in itertools.pairwise(circle))


def test_a_plan_is_a_crew_of_its_steps() -> None:
    steps: list[dict[str, Any]] = [
        {"id": "a", "task": "A"},
        {"id": "b", "task": "B", "after": ["a"], "agent": "critic"},
    ]
    crew = crew_of("the goal", steps, agent="me", tools=["read_file", "create_plan", "delegate_task", "done"])
    assert crew == {
        "name": "plan",
        "mode": "planned",
        "description": "the goal",
        "members": [
            {"name": "a", "agent": "me", "task": "A", "after": [], "tools": ["read_file"]},
            {"name": "b", "agent": "critic", "task": "B", "after": ["a"], "tools": []},
        ],
    }
