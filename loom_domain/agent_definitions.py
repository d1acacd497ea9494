"""Agents as a user's module defines them: what differs from the default agent, by name.

A definition becomes a spec when a run is prepared: everything that it leaves open comes from the default agent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from loom_domain.agents import AgentSpec
from loom_domain.errors import BadRequest
from loom_domain.permissions import Mode
from loom_domain.tool_calls import DONE, ToolSpec

_MCP: Final = "mcp__"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentDefinition:
    """An agent by name; None is: as the default agent has it."""

    name: str
    model: str | None = None
    """`provider:name`, or `demo`."""
    fallbacks: tuple[str, ...] = ()
    """Models that take over, one after the other, when the one before does not answer."""
    system_prompt: str = ""
    tools: tuple[str, ...] | None = None
    """The tools that it has, by name, `mcp__server` for all of a server; None: all. `done` it always has."""
    permissions: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = Mode.DEFAULT
    max_turns: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    require_done_tool: bool = False
    origin: str = ""
    """Where it was defined, for people."""

    def has(self, tool: str) -> bool:
        """Whether it was given this tool."""
        if self.tools is None or tool == DONE or tool in self.tools:
            return True
        return any(name.startswith(_MCP) and tool.startswith(f"{name}__") for name in self.tools)


def spec_of(definition: AgentDefinition, default: AgentSpec) -> AgentSpec:
    """The agent as it runs, without its tools: those are chosen from what the worker has when a run is prepared."""
    open_ones = ("model", "max_turns", "max_output_tokens", "temperature")
    given = {name: getattr(definition, name) for name in open_ones if getattr(definition, name) is not None}
    return replace(
        default,
        name=definition.name,
        fallbacks=definition.fallbacks or default.fallbacks,
        system_prompt=definition.system_prompt or default.system_prompt,
        permissions={**default.permissions, **definition.permissions},
        mode=default.mode if definition.mode is Mode.DEFAULT else definition.mode,
        require_done_tool=definition.require_done_tool or default.require_done_tool,
        **given,
    )


def tools_of(definition: AgentDefinition | None, tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Those of the worker's tools that the agent has, sorted by name; all of them for one without a definition."""
    chosen = (tool for tool in tools if definition is None or definition.has(tool.name))
    return tuple(sorted(chosen, key=lambda tool: tool.name))


def check_tools(definitions: Iterable[AgentDefinition], tools: Iterable[str], servers: Sequence[str] = ()) -> None:
    """Refuse an agent that names a tool which nobody has; raises BadRequest with the nearest name.

    The tools of MCP servers come and go, so of those only the server is checked.
    """
    known = sorted(tools)
    for definition in definitions:
        for name in definition.tools or ():
            if name in known or name == DONE or any(_is_of(server, name) for server in servers):
                continue
            near = get_close_matches(name, [*known, *(f"{_MCP}{server}" for server in servers)], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the tools are {', '.join(known) or 'none'}"
            raise BadRequest(
                f"agent {definition.name!r} ({definition.origin}) names the tool {name!r}, which is not there: {hint}",
                field="tools",
            )


def _is_of(server: str, name: str) -> bool:
    return name == f"{_MCP}{server}" or name.startswith(f"{_MCP}{server}__")
