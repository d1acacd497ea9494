"""Which tasks a pattern takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.core.task_routing import checked, takes
from loom.domain.core.tasks import Action


@pytest.mark.parametrize(
    ("pattern", "action", "taken"),
    [
        ("*", "execute", True),
        ("*", "node.error", True),
        ("node.*", "node.error", True),
        ("node.*", "tool.registered", False),
        ("node.*", "node", False),
        ("node.*", "nodes.error", False),
        ("node.tool.*", "node.tool_call", False),
        ("node.error", "node.error", True),
        ("node.error", "node.error.more", False),
        ("node.e", "node.error", False),
    ],
)
def test_a_pattern_takes_what_it_spells(pattern: str, action: str, taken: bool) -> None:
    assert takes(pattern, action) is taken


@pytest.mark.parametrize("pattern", ["", "**", ".*", "*.error", "node*", "no*de.x", "node.", "node..*", ".node", "*.*"])
def test_what_is_no_pattern_is_refused_and_named(pattern: str) -> None:
    with pytest.raises(BadRequest, match="write an action") as refused:
        checked(pattern)
    assert refused.value.context == {"field": "pattern"}


@given(st.sampled_from(Action))
def test_every_action_is_taken_by_itself_its_group_and_everything(action: Action) -> None:
    group = f"{action.partition('.')[0]}.*"
    patterns = [action.value, "*"] + ([group] if "." in action else [])
    assert [takes(checked(pattern), action) for pattern in patterns] == [True] * len(patterns)


@given(st.sampled_from(Action), st.sampled_from(Action))
def test_an_action_takes_no_other(one: Action, other: Action) -> None:
    assert takes(one.value, other) is (one is other)
