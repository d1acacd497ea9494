"""Copies of the machine's frozen values are those that the standard library would make."""

import dataclasses
from typing import Any

import pytest

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.frozen import replace
from loom.domain.run.state import Hold, RunState
from tests.unit.domain.story import AT, BEGAN, SPEC, told

STATE = told(BEGAN)


def test_a_copy_has_the_changes_and_shares_everything_else() -> None:
    paused = replace(STATE, turn=7, hold=Hold(by="Ann", at=AT))
    assert paused == dataclasses.replace(STATE, turn=7, hold=Hold(by="Ann", at=AT))
    assert paused.conversation is STATE.conversation
    assert (STATE.turn, STATE.hold) == (1, None)


def test_a_value_with_a_dictionary_is_copied_too() -> None:
    assert replace(SPEC, max_turns=3) == dataclasses.replace(SPEC, max_turns=3)
    assert "__slots__" not in vars(AgentSpec)


def test_an_unknown_field_is_an_error() -> None:
    unknown: dict[str, Any] = {"turns_taken": 1}
    with pytest.raises(KeyError, match="turns_taken"):
        replace(STATE, **unknown)
    assert "turns_taken" not in {field.name for field in dataclasses.fields(RunState)}
