"""Agents that extend others: what a definition leaves open comes from the one that it names.

Given values take the place of the other's; rules are laid over its rules, key by key; skills and tools are inherited by
`agent_config.inherit`; hooks add up.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from loom.domain.agents.config import inherit
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

DEFAULT_AGENT: Final = "default"
"""The agent that is always there; a definition of this name takes its place."""

_TAKEN: Final = (
    *("description", "model", "fallbacks", "system_prompt", "tools", "mode", "max_turns", "max_output_tokens"),
    *("temperature", "context_window", "approval_timeout", "require_done_tool", "activation"),
    *("output_schema", "pattern", "rounds", "branches", "evaluates", "knowledge"),
)


def resolved(agents: Mapping[str, AgentDefinition]) -> Mapping[str, AgentDefinition]:
    """The same agents, with what they inherit; raises BadRequest for a name that is not there and for a cycle."""
    known = {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **agents}
    return {name: _resolved(_lineage(agent, known)) for name, agent in agents.items()}


def tree(agents: Mapping[str, AgentDefinition]) -> str:
    """Who extends whom, as lines for people; one that extends nobody named stands at the margin."""
    names = sorted({DEFAULT_AGENT, *agents})
    children: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        if name in agents and agents[name].extends in children:
            children[agents[name].extends].append(name)
    roots = [name for name in names if name not in agents or agents[name].extends not in children]
    # A root that nobody extends and nobody wrote says nothing.
    shown = [root for root in roots if root in agents or children[root]]
    return "\n".join(line for root in shown for line in (root, *_below(root, children, "")))


def _lineage(agent: AgentDefinition, known: Mapping[str, AgentDefinition]) -> list[AgentDefinition]:
    """The agent and those that it extends, nearest first."""
    line = [agent]
    while name := line[-1].extends:
        if name not in known:
            hint = nearest(name, known, f"the agents are {', '.join(sorted(known))}")
            raise BadRequest(
                f"agent {line[-1].name!r} ({line[-1].origin}) extends {name!r}, which is not there: {hint}",
                field="extends",
            )
        if any(name == each.name for each in line):
            path = " → ".join((*(each.name for each in line), name))
            raise BadRequest(
                f"agent {line[-1].name!r} ({line[-1].origin}) extends itself: {path}; take out one `extends`",
                field="extends",
            )
        line.append(known[name])
    return line


def _resolved(line: list[AgentDefinition]) -> AgentDefinition:
    agent, *above = line
    return _extended(agent, _resolved(above)) if above else agent


def _extended(child: AgentDefinition, parent: AgentDefinition) -> AgentDefinition:
    config = inherit(
        parent.config,
        add_skills=child.config.enabled_skills,
        remove_skills=child.config.disabled_skills,
        add_tools=child.config.extra_tools,
        remove_tools=child.config.disabled_tools,
    )
    left_open = {name: getattr(parent, name) for name in _TAKEN if _is_open(child, name)}
    return replace(
        child,
        permissions={**parent.permissions, **child.permissions},
        budget=child.budget.or_else(parent.budget),
        config=config,
        hooks=tuple(dict.fromkeys((*parent.hooks, *child.hooks))),
        **left_open,
    )


def _is_open(agent: AgentDefinition, name: str) -> bool:
    value = getattr(agent, name)
    return value is None or (value in ("", ()) and name != "tools")  # no tools at all is something to say


def _below(name: str, children: Mapping[str, list[str]], margin: str) -> Iterator[str]:
    for child in children[name]:
        last = child == children[name][-1]
        yield f"{margin}{'└─ ' if last else '├─ '}{child}"
        yield from _below(child, children, f"{margin}{'   ' if last else '│  '}")
