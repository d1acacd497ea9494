"""Turns as values."""

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.run.state import TurnState


@given(st.integers(1, 200))
def test_a_run_takes_as_many_turns_as_it_may_each_with_the_one_before_as_its_parent(limit: int) -> None:
    states = [TurnState.initial("run-1", limit)]
    while not states[-1].is_final:
        states.append(states[-1].next())
    assert [state.turn for state in states] == list(range(limit + 1))
    assert [state.parent_turn_id for state in states[1:]] == [state.turn_id for state in states[:-1]]
    assert states[0] == TurnState.initial("run-1", limit)


def test_turns_are_named_as_what_they_do_is() -> None:
    second = TurnState.initial("run-1", 5).next().next()
    assert (second.turn_id, second.parent_turn_id) == ("run-1/t2", "run-1/t1")
