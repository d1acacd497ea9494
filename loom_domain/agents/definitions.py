"""Named agents as defined in a user's module or file. A definition contains only the settings that differ from those of
the default agent.

A definition becomes a spec when a run is prepared. The default agent provides all settings that the definition leaves
out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from loom.domain.agents.code_node import CodeNode
from loom.domain.agents.reflection import Pattern
from loom.domain.agents.spec import Activation, AgentConfig, AgentSpec, KnowledgeLimit, covers
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import Budget, ModelOptions
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import DONE, MCP, MESSAGE_AGENT, READ_ARTIFACT, SHARE
from loom.domain.permissions.judge import Mode
from loom.domain.tree.lineage import Lineage

COLLABORATION_TOOLS: Final = (MESSAGE_AGENT, SHARE)
"""Tools that are only useful if several agents work at the same time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentDefinition:
    """A named agent. A setting that is None or empty is inherited from the agent that this agent extends, or else from
    the default agent.
    """

    name: str
    """What requests and other agents call the agent."""
    description: str = ""
    """The agent's strengths, described for the people and models that choose an agent."""
    extends: str = ""
    """The name of the agent that this agent extends. The extended agent provides the settings that this agent leaves
    out. If the name is empty, the default agent provides them.
    """
    model: str | None = None
    """`provider:name`, or `demo`."""
    fallbacks: tuple[str, ...] = ()
    """The fallback models. Each is tried if the model before it fails."""
    system_prompt: str = ""
    """The instructions that begin each model call. Loom adds those of skills, notes and memories."""
    tools: tuple[str, ...] | None = None
    """The names of the agent's tools. `mcp__server` stands for all of a server's tools. None means all tools. `done` is
    always included.
    """
    permissions: Mapping[str, str] = field(default_factory=dict)
    """Rules, such as `{"bash(git diff:*)": "allow", "bash": "ask"}`. They are merged over inherited rules."""
    mode: Mode | None = None
    """The permission mode of the agent's runs, if the request doesn't name one."""
    knowledge: tuple[str, ...] = ()
    """The names of knowledge bases to search whenever a person sends a message."""
    knowledge_limits: Mapping[str, KnowledgeLimit] = field(default_factory=dict)
    """The limits of those knowledge bases that have their own."""
    max_turns: int | None = None
    """The maximum number of turns of a run, without those of its sub-agents."""
    budget: Budget = field(default_factory=Budget)
    """The limits for a run and all work that it delegates."""
    max_output_tokens: int | None = None
    """The maximum number of output tokens per model call."""
    temperature: float | None = None
    """The sampling temperature. If no agent sets it, the worker's setting or the provider's default applies."""
    model_options: ModelOptions = field(default_factory=ModelOptions)
    """Further options of model calls, such as the reasoning effort. They are merged over inherited options."""
    context_window: int | None = None
    """The size of the model's context window in tokens."""
    collapse_at: float | None = None
    """The shares of the window at which old tool results are shortened, the model is warned, and the conversation is
    compressed.
    """
    warn_at: float | None = None
    """See `collapse_at`."""
    compress_at: float | None = None
    """See `collapse_at`."""
    compress_target: float | None = None
    """The maximum size of a compressed conversation, as a share of its previous size."""
    keep_turns: int | None = None
    """The number of last turns that a compression keeps word for word."""
    sections: tuple[str, ...] = ()
    """The sections of a summary."""
    section_tokens: int | None = None
    """The maximum number of tokens in each of these sections."""
    loop_window: int | None = None
    """The number of repeated turns after which a run stops. 0 disables loop detection."""
    shown_tools: int | None = None
    """The maximum number of tools that the model is shown from the start."""
    shown_tool_tokens: int | None = None
    """The maximum number of tokens in their descriptions."""
    parallel_limit: int | None = None
    """The maximum number of tool calls that run at the same time."""
    rpm: int | None = None
    """The maximum number of requests per minute to one model, for all runs of the agent together."""
    tpm: int | None = None
    """The same for tokens per minute."""
    approval_timeout: float | None = None
    """The number of seconds that a call waits for a person's approval before it is denied."""
    model_attempts: int | None = None
    """The number of attempts at a model call, with delays from `first_retry_delay` to `longest_retry_delay`."""
    first_retry_delay: float | None = None
    """The number of seconds between the first two attempts. It doubles for each further attempt."""
    longest_retry_delay: float | None = None
    """The longest delay between two attempts in seconds."""
    model_timeout: float | None = None
    """The number of seconds without data after which an attempt at a model call fails."""
    tool_attempts: int | None = None
    """The number of attempts at a call to a tool that only reads or is idempotent. The delays are those of model calls.
    """
    tool_timeout: float | None = None
    """The timeout of each tool call in seconds, in place of the tools' own timeouts."""
    tool_timeouts: Mapping[str, float] = field(default_factory=dict)
    """The timeouts of calls to single tools. `mcp__server` stands for every tool of that server."""
    priority: int | None = None
    """The priority of the agent's runs, from 1, which goes first, to 5."""
    patience: float | None = None
    """The number of seconds that the agent's runs wait for their provider or their operator."""
    require_done_tool: bool | None = None
    """Whether a run ends only when the model calls the `done` tool."""
    output_schema: JsonObject | None = None
    """The JSON Schema that the agent's answers must match if the request doesn't specify a schema."""
    pattern: Pattern | None = None
    """The reasoning pattern."""
    rounds: int | None = None
    """The number of rounds for the `reflect` and `tree` patterns."""
    branches: int | None = None
    """The number of branches for the `tree` pattern."""
    evaluates: bool | None = None
    """Whether the agent's model rates each of the agent's answers."""
    config: AgentConfig = field(default_factory=AgentConfig)
    """Settings that are inherited by agents that extend this one: the skills, and the tools to add to the list or
    remove from it.
    """
    activation: Activation | None = None
    """Whether the agent uses only the skills that are enabled for it, or also those that match the task."""
    hooks: tuple[str, ...] = ()
    """The names of hooks and interceptors to apply in addition to those that are registered for this agent or for all
    agents.
    """
    node: CodeNode | None = None
    """Set if a function does the agent's work instead of a model."""
    origin: str = ""
    """The place where the agent was defined, for error messages."""

    def has(self, tool: str) -> bool:
        """Whether the agent has this tool."""
        return self.config.chooses_tool(tool, self.tools)


def spec_of(definition: AgentDefinition, default: AgentSpec) -> AgentSpec:
    """Return the agent's spec without its tools, which are selected from the worker's tools when a run is prepared."""
    open_ones = (
        *("model", "mode", "max_turns", "max_output_tokens", "temperature", "context_window", "approval_timeout"),
        *("output_schema", "pattern", "rounds", "evaluates", "rpm", "tpm"),
        *("model_attempts", "first_retry_delay", "longest_retry_delay", "patience"),
        *("collapse_at", "warn_at", "compress_at", "compress_target", "keep_turns", "section_tokens"),
        *("shown_tools", "shown_tool_tokens"),
        *("loop_window", "parallel_limit", "model_timeout", "tool_attempts", "tool_timeout", "priority"),
    )
    given = {name: getattr(definition, name) for name in open_ones if getattr(definition, name) is not None}
    return replace(
        default,
        name=definition.name,
        fallbacks=definition.fallbacks or default.fallbacks,
        system_prompt=definition.system_prompt or default.system_prompt,
        permissions={**default.permissions, **definition.permissions},
        knowledge=definition.knowledge or default.knowledge,
        knowledge_limits=definition.knowledge_limits if definition.knowledge else default.knowledge_limits,
        sections=definition.sections or default.sections,
        tool_timeouts={**default.tool_timeouts, **definition.tool_timeouts},
        budget=definition.budget.or_else(default.budget),
        model_options=definition.model_options.or_else(default.model_options),
        require_done_tool=definition.require_done_tool or default.require_done_tool,
        config=replace(definition.config, activation=definition.activation or definition.config.activation),
        **given,
    )


def tools_of(definition: AgentDefinition | None, tools: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Select the agent's tools from the worker's tools, and return them sorted by name. An agent without a definition
    has all of the worker's tools.
    """
    chosen = (tool for tool in tools if definition is None or definition.has(tool.name))
    return tuple(sorted(chosen, key=lambda tool: tool.name))


def with_collaboration_tools(
    chosen: tuple[ToolSpec, ...], every: Iterable[ToolSpec], definition: AgentDefinition, lineage: Lineage | None
) -> tuple[ToolSpec, ...]:
    """Return the agent's tools. They include collaboration tools only if other agents work alongside the agent or if
    the agent names these tools.
    """
    named = definition.tools or ()
    alone = tuple(tool for tool in chosen if tool.name not in COLLABORATION_TOOLS or tool.name in named)
    if lineage is None or not lineage.named or lineage.tools:
        return alone
    together = {tool.name: tool for tool in every if tool.name in (*COLLABORATION_TOOLS, READ_ARTIFACT)}
    every_one = {**{tool.name: tool for tool in alone}, **together}
    return tuple(tool for _, tool in sorted(every_one.items()))


def check_tools(definitions: Iterable[AgentDefinition], tools: Iterable[str], servers: Sequence[str] = ()) -> None:
    """Raise BadRequest if an agent names an unknown tool. The message suggests the closest known name.

    An MCP server's tools can change at any time, so only the server's name is checked.
    """
    known = sorted(tools)
    for definition in definitions:
        config = definition.config
        for name in (
            *(definition.tools or ()),
            *config.extra_tools,
            *config.disabled_tools,
            *definition.tool_timeouts,
        ):
            if name in known or name == DONE or any(_is_of(server, name) for server in servers):
                continue
            hint = nearest(
                name, [*known, *(f"{MCP}{server}" for server in servers)], f"the tools are {', '.join(known) or 'none'}"
            )
            raise BadRequest(
                f"agent {definition.name!r} ({definition.origin}) names the unknown tool {name!r}: {hint}",
                field="tools",
            )


def _is_of(server: str, name: str) -> bool:
    return covers([f"{MCP}{server}"], name)
