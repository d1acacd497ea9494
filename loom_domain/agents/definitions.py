"""Agents as a user's module or file defines them: the settings in which they differ from the default agent.

A definition becomes a spec when a run is prepared. Settings that it leaves unset come from the default agent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from loom.domain.agents.reflection import Pattern
from loom.domain.agents.spec import Activation, AgentConfig, AgentSpec, covers
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import Budget
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import DONE, MCP, MESSAGE_AGENT, READ_ARTIFACT, SHARE
from loom.domain.permissions.judge import Mode
from loom.domain.tree.lineage import Lineage

COLLABORATION_TOOLS: Final = (MESSAGE_AGENT, SHARE)
"""Tools that are only useful if several agents work at the same time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentDefinition:
    """An agent by name. A value that is None or empty comes from the agent that it extends, or from the default one."""

    name: str
    description: str = ""
    """What it is good at; models read it when they delegate."""
    extends: str = ""
    """The agent that it inherits unset values from; empty: only the default one."""
    model: str | None = None
    """`provider:name`, or `demo`."""
    fallbacks: tuple[str, ...] = ()
    """Models to fall back to, in order, if a model does not answer."""
    system_prompt: str = ""
    tools: tuple[str, ...] | None = None
    """Names of its tools; `mcp__server` stands for all tools of a server. None: all tools. It always has `done`."""
    permissions: Mapping[str, str] = field(default_factory=dict)
    mode: Mode | None = None
    knowledge: tuple[str, ...] = ()
    """Names of the knowledge bases that are searched for every message from a person."""
    max_turns: int | None = None
    budget: Budget = field(default_factory=Budget)
    max_output_tokens: int | None = None
    temperature: float | None = None
    context_window: int | None = None
    approval_timeout: float | None = None
    require_done_tool: bool | None = None
    output_schema: JsonObject | None = None
    """JSON Schema of its final answers, unless the request has one."""
    pattern: Pattern | None = None
    """Its reasoning pattern."""
    rounds: int | None = None
    """Rounds of the patterns `reflect` and `tree`."""
    branches: int | None = None
    """Branches of the pattern `tree`."""
    evaluates: bool | None = None
    """Whether its model rates each final answer."""
    config: AgentConfig = field(default_factory=AgentConfig)
    """What children inherit: enabled and disabled skills, extra and disabled tools."""
    activation: Activation | None = None
    hooks: tuple[str, ...] = ()
    """Names of hooks and interceptors that do not apply to every agent."""
    origin: str = ""
    """Where it was defined, for error messages."""

    def has(self, tool: str) -> bool:
        """Whether the agent has this tool."""
        return self.config.chooses_tool(tool, self.tools)


def spec_of(definition: AgentDefinition, default: AgentSpec) -> AgentSpec:
    """The spec of an agent, without its tools: they are selected from the worker's tools when a run is prepared."""
    open_ones = (
        *("model", "mode", "max_turns", "max_output_tokens", "temperature", "context_window", "approval_timeout"),
        *("output_schema", "pattern", "rounds", "evaluates"),
    )
    given = {name: getattr(definition, name) for name in open_ones if getattr(definition, name) is not None}
    return replace(
        default,
        name=definition.name,
        fallbacks=definition.fallbacks or default.fallbacks,
        system_prompt=definition.system_prompt or default.system_prompt,
        permissions={**default.permissions, **definition.permissions},
        knowledge=definition.knowledge or default.knowledge,
        budget=definition.budget.or_else(default.budget),
        require_done_tool=definition.require_done_tool or default.require_done_tool,
        config=replace(definition.config, activation=definition.activation or definition.config.activation),
        **given,
    )


def tools_of(definition: AgentDefinition | None, tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """The worker's tools that the agent has, sorted by name; all of them for an agent without a definition."""
    chosen = (tool for tool in tools if definition is None or definition.has(tool.name))
    return tuple(sorted(chosen, key=lambda tool: tool.name))


def with_collaboration_tools(
    chosen: tuple[ToolSpec, ...], every: Iterable[ToolSpec], definition: AgentDefinition, lineage: Lineage | None
) -> tuple[ToolSpec, ...]:
    """The tools, with those for collaboration only if other agents work beside this one, or if it names them."""
    named = definition.tools or ()
    alone = tuple(tool for tool in chosen if tool.name not in COLLABORATION_TOOLS or tool.name in named)
    if lineage is None or not lineage.named or lineage.tools:
        return alone
    together = {tool.name: tool for tool in every if tool.name in (*COLLABORATION_TOOLS, READ_ARTIFACT)}
    every_one = {**{tool.name: tool for tool in alone}, **together}
    return tuple(tool for _, tool in sorted(every_one.items()))


def check_tools(definitions: Iterable[AgentDefinition], tools: Iterable[str], servers: Sequence[str] = ()) -> None:
    """Reject agents that name unknown tools. Raises BadRequest, which suggests the nearest name.

    The tools of MCP servers come and go, so only the server's name is checked.
    """
    known = sorted(tools)
    for definition in definitions:
        for name in (*(definition.tools or ()), *definition.config.extra_tools, *definition.config.disabled_tools):
            if name in known or name == DONE or any(_is_of(server, name) for server in servers):
                continue
            hint = nearest(
                name, [*known, *(f"{MCP}{server}" for server in servers)], f"the tools are {', '.join(known) or 'none'}"
            )
            raise BadRequest(
                f"agent {definition.name!r} ({definition.origin}) names the tool {name!r}, which is not there: {hint}",
                field="tools",
            )


def _is_of(server: str, name: str) -> bool:
    return covers([f"{MCP}{server}"], name)
