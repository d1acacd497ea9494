"""What of skills and tools passes from an agent to its children."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.inheritance import inherit
from loom.domain.agents.spec import Activation, AgentConfig, covers

NAMES = st.frozensets(st.sampled_from(["a", "b", "c", "d", "mcp__x", "mcp__x__y", "done"]))
CHANGES = st.fixed_dictionaries(
    {"add_skills": NAMES, "remove_skills": NAMES, "add_tools": NAMES, "remove_tools": NAMES}
)
CONFIGS = st.builds(
    inherit,
    st.just(AgentConfig()),
    add_skills=NAMES,
    remove_skills=NAMES,
    add_tools=NAMES,
    remove_tools=NAMES,
    activation=st.sampled_from(Activation),
)
OWN = st.none() | NAMES.map(tuple)
TOOLS = ["a", "b", "c", "d", "mcp__x__y", "mcp__x__z"]


def test_a_child_has_what_its_parent_has_and_what_was_added_without_what_was_removed() -> None:
    parent = AgentConfig(enabled_skills=("pdf", "sql"), extra_tools=("rate",), activation=Activation.EXPLICIT)
    child = inherit(
        parent, add_skills=["charts"], remove_skills=["sql"], add_tools=["bash", "grep"], remove_tools=["grep"]
    )
    assert child == AgentConfig(
        enabled_skills=("charts", "pdf"),
        disabled_skills=("sql",),
        extra_tools=("bash", "rate"),
        disabled_tools=("grep",),
        activation=Activation.EXPLICIT,
    )


def test_nothing_brings_back_what_an_ancestor_was_denied() -> None:
    parent = inherit(AgentConfig(), remove_skills=["sql"], remove_tools=["mcp__github"])
    child = inherit(parent, add_skills=["sql"], add_tools=["mcp__github__push"])
    assert child == parent
    assert not child.chooses_tool("mcp__github__push", None)


def test_a_list_of_tools_is_extended_and_cut_and_done_is_always_there() -> None:
    config = AgentConfig(extra_tools=("bash",), disabled_tools=("write_file", "done"))
    own = ("read_file", "write_file", "mcp__time")
    chosen = [n for n in ("read_file", "write_file", "bash", "grep", "mcp__time__now") if config.chooses_tool(n, own)]
    assert chosen == ["read_file", "bash", "mcp__time__now"]
    assert config.chooses_tool("grep", None)
    assert config.chooses_tool("done", ())


@given(CONFIGS)
def test_a_child_without_changes_is_like_its_parent(parent: AgentConfig) -> None:
    assert inherit(parent) == parent


@given(CONFIGS, CHANGES)
def test_child_is_parent_and_added_without_removed(parent: AgentConfig, changes: dict[str, Any]) -> None:
    child = inherit(parent, **changes)
    gone = changes["remove_skills"] | set(parent.disabled_skills)
    assert set(child.enabled_skills) == (set(parent.enabled_skills) | changes["add_skills"]) - gone
    removed = changes["remove_tools"] | set(parent.disabled_tools)
    added = set(parent.extra_tools) | changes["add_tools"]
    assert set(child.extra_tools) == {name for name in added if not covers(removed, name)}


@given(CONFIGS, CHANGES, CHANGES)
def test_what_is_disabled_only_grows_down_the_tree(
    root: AgentConfig, first: dict[str, Any], second: dict[str, Any]
) -> None:
    child = inherit(root, **first)
    grandchild = inherit(child, **second)
    assert set(root.disabled_skills) <= set(child.disabled_skills) <= set(grandchild.disabled_skills)
    assert set(root.disabled_tools) <= set(child.disabled_tools) <= set(grandchild.disabled_tools)


@given(CONFIGS, CHANGES, OWN)
def test_a_child_has_no_tool_that_was_neither_its_parents_nor_added(
    parent: AgentConfig, changes: dict[str, Any], own: tuple[str, ...] | None
) -> None:
    child = inherit(parent, **changes)
    for tool in TOOLS:
        if child.chooses_tool(tool, own):
            assert parent.chooses_tool(tool, own) or covers(changes["add_tools"], tool)


@given(CONFIGS, CHANGES)
def test_inheriting_the_same_again_changes_nothing(parent: AgentConfig, changes: dict[str, Any]) -> None:
    child = inherit(parent, **changes)
    assert inherit(child, **changes) == child
