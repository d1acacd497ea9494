"""Agents that extend others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.definitions import AgentDefinition, spec_of
from loom.domain.agents.inheritance import inheritance_tree, with_inherited
from loom.domain.agents.spec import Activation, AgentConfig, AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import Budget
from loom.domain.permissions.judge import Mode


def agent(name: str, extends: str = "", **given: Any) -> AgentDefinition:
    """A definition in a file of its own."""
    return AgentDefinition(name=name, extends=extends, origin=f"agents/{name}.yaml", **given)


def family(*agents: AgentDefinition) -> dict[str, AgentDefinition]:
    """By name."""
    return {each.name: each for each in agents}


CLERK = agent(
    "clerk",
    description="Answers.",
    knowledge=("trips",),
    model="openai:small",
    fallbacks=("demo",),
    system_prompt="Be kind.",
    tools=("read_file", "grep"),
    permissions={"bash": "deny", "grep": "allow"},
    mode=Mode.READ_ONLY,
    max_turns=9,
    budget=Budget(tokens=1000, seconds=60),
    temperature=0.0,
    activation=Activation.EXPLICIT,
    config=AgentConfig(enabled_skills=("trips",), disabled_tools=("write_file",)),
    hooks=("audit",),
)


def test_what_a_definition_leaves_open_comes_from_the_one_that_it_extends() -> None:
    night = agent(
        "night",
        "clerk",
        system_prompt="Be quiet.",
        permissions={"grep": "ask"},
        budget=Budget(tokens=500),
        config=AgentConfig(enabled_skills=("sleep",), extra_tools=("bash", "write_file")),
        hooks=("lamp",),
    )
    found = with_inherited(family(night, CLERK))["night"]
    assert found == agent(
        "night",
        "clerk",
        description="Answers.",
        knowledge=("trips",),
        model="openai:small",
        fallbacks=("demo",),
        system_prompt="Be quiet.",
        tools=("read_file", "grep"),
        permissions={"bash": "deny", "grep": "ask"},
        mode=Mode.READ_ONLY,
        max_turns=9,
        budget=Budget(tokens=500, seconds=60),
        temperature=0.0,
        activation=Activation.EXPLICIT,
        config=AgentConfig(enabled_skills=("sleep", "trips"), extra_tools=("bash",), disabled_tools=("write_file",)),
        hooks=("audit", "lamp"),
    )
    assert [name for name in ("read_file", "grep", "bash", "write_file", "glob") if found.has(name)] == [
        *("read_file", "grep", "bash")
    ]


def test_values_that_look_like_nothing_are_values() -> None:
    strict = agent("strict", "clerk", tools=(), temperature=0.0, require_done_tool=False, mode=Mode.DEFAULT)
    found = with_inherited(family(strict, CLERK))["strict"]
    assert (found.tools, found.require_done_tool, found.mode) == ((), False, Mode.DEFAULT)


def test_the_default_agent_is_always_there_to_extend() -> None:
    assert with_inherited(family(agent("a", "default")))["a"].tools is None
    mine = agent("default", system_prompt="Mine.")
    assert with_inherited(family(agent("a", "default"), mine))["a"].system_prompt == "Mine."


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        (
            [agent("a", "clark"), CLERK],
            r"agent 'a' \(agents/a.yaml\) extends the unknown agent 'clark': .*did you mean 'clerk'",
        ),
        ([agent("a", "zzz")], "the agents are a, default"),
        ([agent("a", "a")], "extends itself: a → a; remove one `extends`"),
        ([agent("a", "b"), agent("b", "c"), agent("c", "b")], "extends itself: a → b → c → b"),
    ],
)
def test_what_cannot_be_extended_is_refused_with_a_way_out(agents: list[AgentDefinition], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        with_inherited(family(*agents))


def test_a_family_is_drawn_as_a_tree() -> None:
    drawn = inheritance_tree(
        family(CLERK, agent("night", "clerk"), agent("day", "clerk"), agent("noon", "day"), agent("x", "default"))
    )
    assert drawn == "\n".join(["clerk", "├─ day", "│  └─ noon", "└─ night", "default", "└─ x"])


def test_the_default_settings_fill_what_nobody_said() -> None:
    default = AgentSpec(name="default", model="demo", max_turns=50, budget=Budget(cost_usd=1.0), approval_timeout=60.0)
    spec = spec_of(CLERK, default)
    assert (spec.max_turns, spec.approval_timeout, spec.budget) == (
        9,
        60.0,
        Budget(tokens=1000, seconds=60, cost_usd=1),
    )
    assert spec.config == AgentConfig(
        enabled_skills=("trips",), disabled_tools=("write_file",), activation=Activation.EXPLICIT
    )


@given(st.lists(st.sampled_from("abcdef"), min_size=6, max_size=6))
def test_where_everybody_extends_somebody_there_is_a_cycle(extended: list[str]) -> None:
    agents = family(*(agent(name, other) for name, other in zip("abcdef", extended, strict=True)))
    with pytest.raises(BadRequest, match="extends itself"):
        with_inherited(agents)


@given(st.permutations("abcdef"))
def test_a_chain_hands_everything_down_in_whatever_order_it_was_written(order: list[str]) -> None:
    chain = family(*(agent(n, chr(ord(n) - 1) if n > "a" else "", hooks=(n,)) for n in order))
    assert with_inherited(chain)["f"].hooks == tuple("abcdef")
