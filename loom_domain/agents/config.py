"""What of skills and tools an agent may use, and how a child inherits it.

    child = (parent + added) − removed

What is removed stays so: the disabled sets only grow from parent to child, so that no descendant gets back what one of
its ancestors was denied, however often it is added.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from loom.domain.core.tool_names import DONE, MCP


class Activation(StrEnum):
    """How an agent comes to its skills."""

    HYBRID = "hybrid"
    """The enabled ones, and others that fit the task."""
    EXPLICIT = "explicit"
    """The enabled ones only."""
    AUTO = "auto"
    """Those that fit the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentConfig:
    """The part of an agent's definition that its children inherit; names are sorted and unique."""

    enabled_skills: tuple[str, ...] = ()
    disabled_skills: tuple[str, ...] = ()
    extra_tools: tuple[str, ...] = ()
    """Beside the agent's own list of tools; `mcp__server` is every tool of that server."""
    disabled_tools: tuple[str, ...] = ()
    activation: Activation = Activation.HYBRID

    def chooses_tool(self, name: str, own: tuple[str, ...] | None) -> bool:
        """Whether the agent has this tool, `own` being its list of tools (None: all); `done` it always has."""
        if name == DONE:
            return True
        if covers(self.disabled_tools, name):
            return False
        return own is None or covers(own, name) or covers(self.extra_tools, name)


def inherit(
    parent: AgentConfig,
    *,
    add_skills: Iterable[str] = (),
    remove_skills: Iterable[str] = (),
    add_tools: Iterable[str] = (),
    remove_tools: Iterable[str] = (),
    activation: Activation | None = None,
) -> AgentConfig:
    """The child's configuration: (parent + added) − removed, where what the parent was denied counts as removed."""
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


def covers(names: Iterable[str], tool: str) -> bool:
    """Whether these names mean the tool: its own name, or the `mcp__server` that brings it."""
    return any(name == tool or (name.startswith(MCP) and tool.startswith(f"{name}__")) for name in names)


def _union(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*one, *other}))
