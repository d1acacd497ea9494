"""Inheritance between agents: an agent that extends another agent inherits the settings that it leaves out.

Values that an agent sets replace inherited values. Permission rules, model options and the timeouts of single tools are
merged key by key, and hooks are combined. For skills and tools:

    child = (parent + added) − removed

A removed skill or tool remains removed. The disabled sets only grow from parent to child, so a descendant can't restore
a skill or tool that one of its ancestors disabled, even by adding it again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import Activation, AgentConfig, covers
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

DEFAULT_AGENT: Final = "default"
"""The built-in agent. A definition with this name replaces it."""

_INHERITED: Final = (
    *("description", "model", "fallbacks", "system_prompt", "tools", "mode", "max_turns", "max_output_tokens"),
    *("temperature", "context_window", "rpm", "tpm", "approval_timeout", "require_done_tool", "activation"),
    *("output_schema", "pattern", "rounds", "branches", "evaluates", "knowledge"),
    *("model_attempts", "first_retry_delay", "longest_retry_delay", "patience"),
    *("collapse_at", "warn_at", "compress_at", "compress_target", "keep_turns", "sections", "section_tokens"),
    *("shown_tools", "shown_tool_tokens"),
    *("loop_window", "parallel_limit", "model_timeout", "tool_attempts", "tool_timeout", "priority"),
)


def inherit(
    parent: AgentConfig,
    *,
    add_skills: Iterable[str] = (),
    remove_skills: Iterable[str] = (),
    add_tools: Iterable[str] = (),
    remove_tools: Iterable[str] = (),
    activation: Activation | None = None,
) -> AgentConfig:
    """Return the child's configuration, which is (parent + added) − removed. Skills and tools that the parent disabled
    also count as removed.
    """
    disabled_skills = _union(parent.disabled_skills, remove_skills)
    disabled_tools = _union(parent.disabled_tools, remove_tools)
    skills = _union(parent.enabled_skills, add_skills)
    tools = _union(parent.extra_tools, add_tools)
    return AgentConfig(
        enabled_skills=tuple(name for name in skills if name not in disabled_skills),
        disabled_skills=disabled_skills,
        extra_tools=tuple(name for name in tools if not covers(disabled_tools, name)),
        disabled_tools=disabled_tools,
        activation=parent.activation if activation is None else activation,
    )


def with_inherited(agents: Mapping[str, AgentDefinition]) -> Mapping[str, AgentDefinition]:
    """Return the same agents with their inherited settings. Raises BadRequest for an unknown name or a cycle."""
    known = {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **agents}
    return {name: _resolved(_lineage(agent, known)) for name, agent in agents.items()}


def inheritance_tree(agents: Mapping[str, AgentDefinition]) -> str:
    """Return lines of text that show which agent extends which. Agents that don't extend another agent aren't
    indented.
    """
    names = sorted({DEFAULT_AGENT, *agents})
    children: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        if name in agents and agents[name].extends in children:
            children[agents[name].extends].append(name)
    roots = [name for name in names if name not in agents or agents[name].extends not in children]
    # Omit a root that no agent extends and that isn't user-defined.
    shown = [root for root in roots if root in agents or children[root]]
    return "\n".join(line for root in shown for line in (root, *_below(root, children, "")))


def _lineage(agent: AgentDefinition, known: Mapping[str, AgentDefinition]) -> list[AgentDefinition]:
    """Return the agent and its ancestors, nearest first."""
    line = [agent]
    while name := line[-1].extends:
        if name not in known:
            hint = nearest(name, known, f"the agents are {', '.join(sorted(known))}")
            raise BadRequest(
                f"agent {line[-1].name!r} ({line[-1].origin}) extends the unknown agent {name!r}: {hint}",
                field="extends",
            )
        if known[name].node is not None:
            raise BadRequest(
                f"agent {line[-1].name!r} ({line[-1].origin}) extends {name!r}, which is a node of code: extend an"
                " agent with a model",
                field="extends",
            )
        if any(name == each.name for each in line):
            path = " → ".join((*(each.name for each in line), name))
            raise BadRequest(
                f"agent {line[-1].name!r} ({line[-1].origin}) extends itself: {path}; remove one `extends`",
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
    left_open = {name: getattr(parent, name) for name in _INHERITED if _is_open(child, name)}
    return replace(
        child,
        permissions={**parent.permissions, **child.permissions},
        budget=child.budget.or_else(parent.budget),
        model_options=child.model_options.or_else(parent.model_options),
        config=config,
        knowledge_limits=child.knowledge_limits if child.knowledge else parent.knowledge_limits,
        tool_timeouts={**parent.tool_timeouts, **child.tool_timeouts},
        hooks=tuple(dict.fromkeys((*parent.hooks, *child.hooks))),
        **left_open,
    )


def _is_open(agent: AgentDefinition, name: str) -> bool:
    value = getattr(agent, name)
    return value is None or (value in ("", ()) and name != "tools")  # an empty list means no tools


def _below(name: str, children: Mapping[str, list[str]], margin: str) -> Iterator[str]:
    for child in children[name]:
        last = child == children[name][-1]
        yield f"{margin}{'└─ ' if last else '├─ '}{child}"
        yield from _below(child, children, f"{margin}{'   ' if last else '│  '}")


def _union(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))
