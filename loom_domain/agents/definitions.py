"""Agents as a user's module or file defines them: what differs from the default agent, by name.

A definition becomes a spec when a run is prepared: everything that it leaves open comes from the default agent.
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
"""Tools that only make sense where several agents work at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentDefinition:
    """An agent by name; None, and whatever is empty, is: as the agent that it extends has it, or the default one."""

    name: str
    description: str = ""
    """What it is good at, for whoever chooses among agents."""
    extends: str = ""
    """The agent that it takes everything from which it leaves open; empty: the default one's settings only."""
    model: str | None = None
    """`provider:name`, or `demo`."""
    fallbacks: tuple[str, ...] = ()
    """Models that take over, one after the other, when the one before does not answer."""
    system_prompt: str = ""
    tools: tuple[str, ...] | None = None
    """The tools that it has, by name, `mcp__server` for all of a server; None: all. `done` it always has."""
    permissions: Mapping[str, str] = field(default_factory=dict)
    mode: Mode | None = None
    knowledge: tuple[str, ...] = ()
    """Knowledge bases that are looked into whenever a person speaks, by name."""
    max_turns: int | None = None
    budget: Budget = field(default_factory=Budget)
    max_output_tokens: int | None = None
    temperature: float | None = None
    context_window: int | None = None
    approval_timeout: float | None = None
    require_done_tool: bool | None = None
    output_schema: JsonObject | None = None
    """JSON Schema that its final answers have to fit, where the request brings none."""
    pattern: Pattern | None = None
    """How it reasons."""
    rounds: int | None = None
    """Of the patterns `reflect` and `tree`."""
    branches: int | None = None
    """Of the pattern `tree`."""
    evaluates: bool | None = None
    """Its model rates each final answer."""
    config: AgentConfig = field(default_factory=AgentConfig)
    """What children inherit: skills, and tools beside and off the list."""
    activation: Activation | None = None
    hooks: tuple[str, ...] = ()
    """Hooks and interceptors that are not for every agent, by name."""
    origin: str = ""
    """Where it was defined, for people."""

    def has(self, tool: str) -> bool:
        """Whether it was given this tool."""
        return self.config.chooses_tool(tool, self.tools)


def spec_of(definition: AgentDefinition, default: AgentSpec) -> AgentSpec:
    """The agent as it runs, without its tools: those are chosen from what the worker has when a run is prepared."""
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
    """Those of the worker's tools that the agent has, sorted by name; all of them for one without a definition."""
    chosen = (tool for tool in tools if definition is None or definition.has(tool.name))
    return tuple(sorted(chosen, key=lambda tool: tool.name))


def with_collaboration_tools(
    chosen: tuple[ToolSpec, ...], every: Iterable[ToolSpec], definition: AgentDefinition, lineage: Lineage | None
) -> tuple[ToolSpec, ...]:
    """The tools without those for working together, but for agents that others work beside, or that name them."""
    named = definition.tools or ()
    alone = tuple(tool for tool in chosen if tool.name not in COLLABORATION_TOOLS or tool.name in named)
    if lineage is None or not lineage.named or lineage.tools:
        return alone
    together = {tool.name: tool for tool in every if tool.name in (*COLLABORATION_TOOLS, READ_ARTIFACT)}
    every_one = {**{tool.name: tool for tool in alone}, **together}
    return tuple(tool for _, tool in sorted(every_one.items()))


def check_tools(definitions: Iterable[AgentDefinition], tools: Iterable[str], servers: Sequence[str] = ()) -> None:
    """Refuse an agent that names a tool which nobody has; raises BadRequest with the nearest name.

    The tools of MCP servers come and go, so of those only the server is checked.
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
