"""What a user's module builds and the worker loads: tools, agents, MCP servers and hooks.

    from loom_app import LoomApp

    app = LoomApp()

    @app.tool(effect="read")
    def count_words(path: Path) -> int:
        "Count the words of a file."
        return len(path.read_text().split())

`loom worker --app my_tools:app` serves it. An app is filled while its module is imported and is only read afterwards;
nothing is global, and importing this module does nothing.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar, Unpack, overload

from activities.ports import Tool, ToolContext, ToolOutput
from activities.toolbox.user_class import class_tool, has_class_form
from activities.toolbox.user_options import ToolOptions, check_name
from activities.toolbox.user_output import part_of
from activities.toolbox.user_tool import user_tool
from loom_domain.agent_definitions import AgentDefinition
from loom_domain.errors import BadRequest, ToolExecutionError, ToolUnavailableError
from loom_domain.hooks import Ask, Deny, ToolCallHook
from loom_domain.mcp import McpServer, read_servers
from loom_domain.messages import Part, ToolCall
from loom_domain.permissions import Mode, parse_rules
from loom_domain.tool_calls import ToolSpec

__all__ = [
    "AgentDefinition",
    "Ask",
    "BadRequest",
    "Deny",
    "LoomApp",
    "McpServer",
    "Part",
    "ToolCall",
    "ToolContext",
    "ToolExecutionError",
    "ToolOutput",
    "ToolUnavailableError",
    "part_of",
]

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=ToolCallHook)


class LoomApp:
    """A registry of everything that a user's module brings; names are unique, and what is wrong is refused at once."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._origins: dict[str, str] = {}
        self._agents: dict[str, AgentDefinition] = {}
        self._servers: dict[str, McpServer] = {}
        self._hooks: list[ToolCallHook] = []

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Register the decorated function as a tool; it stays the function that it was.

        Options: name, description, effect, timeout, parallel, ephemeral, queue, permission, available, scope.
        """

        def register(decorated: F) -> F:
            self.register_tool(decorated, **options)
            return decorated

        if function is None:
            return register
        if isinstance(function, str):
            raise BadRequest(f'write @app.tool(name="{function}"), names are not given by position', field="tool")
        return register(function)

    def register_tool(self, tool: object, /, **options: Unpack[ToolOptions]) -> Tool:
        """Register a function, an object or class in class form, or anything that has the port `Tool`."""
        made = _made(tool, options)
        name, origin = made.spec.name, origin_of(tool)
        check_name(name, origin)
        if name in self._tools:
            raise BadRequest(
                f"two tools are called {name!r}: {self._origins[name]} and {origin}: give one another name",
                field="tool",
            )
        self._tools[name] = made
        self._origins[name] = origin
        return made

    def get_tool(self, name: str) -> Tool:
        """The tool of that name; raises BadRequest with the nearest one."""
        return _found("tool", name, self._tools)

    def list_tools(self) -> tuple[ToolSpec, ...]:
        """What model and run see of every tool, by name."""
        return tuple(tool.spec for _, tool in sorted(self._tools.items()))

    def create_agent(
        self,
        name: str,
        *,
        model: str | None = None,
        fallbacks: Sequence[str] = (),
        system_prompt: str = "",
        tools: Sequence[str] | None = None,
        permissions: Mapping[str, str] | None = None,
        mode: Literal["default", "read-only", "accept-edits", "bypass"] = "default",
        max_turns: int | None = None,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        require_done_tool: bool = False,
    ) -> AgentDefinition:
        """Define an agent that requests can name; what is left open comes from the default agent.

        `tools` are names, also of built-in tools, or `mcp__server`; None gives it all. An agent called `default` takes
        the place of the built-in one.
        """
        origin = _caller()
        _check_agent(name, origin, self._agents, tools=tools, mode=mode)
        for limit, value in {"max_turns": max_turns, "max_output_tokens": max_output_tokens}.items():
            if value is not None and value < 1:
                raise BadRequest(f"agent {name!r} ({origin}): {limit} must be at least 1", field="agent")
        parse_rules(permissions or {})
        self._agents[name] = AgentDefinition(
            name=name,
            model=model,
            fallbacks=tuple(fallbacks),
            system_prompt=system_prompt,
            tools=None if tools is None else tuple(tools),
            permissions=dict(permissions or {}),
            mode=Mode(mode),
            max_turns=max_turns,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            require_done_tool=require_done_tool,
            origin=origin,
        )
        return self._agents[name]

    def get_agent(self, name: str) -> AgentDefinition:
        """The agent of that name; raises BadRequest with the nearest one."""
        return _found("agent", name, self._agents)

    def list_agents(self) -> tuple[AgentDefinition, ...]:
        """Every agent, by name."""
        return tuple(agent for _, agent in sorted(self._agents.items()))

    def mcp_server(self, name: str, **given: Any) -> McpServer:
        """Add an MCP server as a source of tools; the options are those of `[mcp.NAME]` in `loom.toml`."""
        if name in self._servers:
            raise BadRequest(f"two MCP servers are called {name!r}: give one another name", field=f"mcp.{name}")
        table = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        (server,) = read_servers({name: table})
        self._servers[name] = server
        return server

    def on_tool_call(self, hook: H) -> H:
        """Ask this function before each tool call: `(call, run_id)` → None, `Deny(reason)` or `Ask(reason)`.

        It may be async. It can make a verdict stricter, never looser; one that fails blocks the call.
        """
        if not callable(hook):
            raise BadRequest("write @app.on_tool_call without arguments, above a function", field="hook")
        self._hooks.append(hook)
        return hook

    def include(self, other: "LoomApp") -> None:
        """Take in everything of another app; raises BadRequest when a name is there twice."""
        agents = {agent.name: agent for agent in other.list_agents()}
        servers = {server.name: server for server in other.mcp_servers}
        pairs: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
            "tool": (self._tools, other.tools),
            "agent": (self._agents, agents),
            "server": (self._servers, servers),
        }
        for kind, (mine, theirs) in pairs.items():
            if twice := sorted(set(mine) & set(theirs)):
                raise BadRequest(f"both apps have a {kind} {twice[0]!r}: rename one", field=kind)
        self._tools |= other.tools
        self._origins |= other.origins
        self._agents |= agents
        self._servers |= servers
        self._hooks += other.hooks

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Every tool by name."""
        return MappingProxyType(self._tools)

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each tool was defined, for people."""
        return MappingProxyType(self._origins)

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """Every MCP server."""
        return tuple(self._servers.values())

    @property
    def hooks(self) -> tuple[ToolCallHook, ...]:
        """Every hook, in the order of registration."""
        return tuple(self._hooks)


def origin_of(thing: object) -> str:
    """Where a function, class or object was defined: `my_tools.count_words (my_tools.py:12)`."""
    thing = thing.func if isinstance(thing, partial) else thing
    named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    module = named.__module__.rpartition("/")[2].removesuffix(".py")  # an app that is a file has its path as its name
    name = f"{module}.{named.__qualname__}"
    try:
        code = inspect.unwrap(named)
        line = inspect.getsourcelines(code)[1]
        return f"{name} ({inspect.getsourcefile(code)}:{line})"
    except (OSError, TypeError):
        return name


def _made(tool: Any, options: ToolOptions) -> Tool:
    origin = origin_of(tool)
    if isinstance(getattr(tool, "spec", None), ToolSpec):
        if options:
            raise BadRequest(f"{origin} has a spec of its own: give no options beside it", field="tool")
        made: Tool = tool
        return made
    if has_class_form(tool):
        return class_tool(tool, origin, options)
    if isinstance(tool, type) or not callable(tool):
        raise BadRequest(
            f"{origin} is neither a function nor a tool in class form: that has `name`, `description`,"
            " `args_schema` and `run`",
            field="tool",
        )
    return user_tool(tool, origin, options)


def _check_agent(
    name: str, origin: str, agents: Mapping[str, AgentDefinition], *, tools: Sequence[str] | None, mode: str
) -> None:
    if not name.strip() or len(name) > 64 or not name.isprintable():
        raise BadRequest(f"{name!r} ({origin}) cannot be an agent's name: use 1 to 64 characters", field="agent")
    if name in agents:
        raise BadRequest(f"two agents are called {name!r}: {agents[name].origin} and {origin}", field="agent")
    if isinstance(tools, str):
        raise BadRequest(f"agent {name!r} ({origin}): `tools` is a list of names: [{tools!r}]", field="agent")
    if mode not in tuple(Mode):
        raise BadRequest(f"agent {name!r} ({origin}): mode {mode!r} must be one of {', '.join(Mode)}", field="agent")


def _caller() -> str:
    """The line of the user's module that called the caller of this."""
    frame = inspect.currentframe()
    outer = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    return "unknown" if outer is None else f"{outer.f_code.co_filename}:{outer.f_lineno}"


T = TypeVar("T")


def _found(kind: str, name: str, among: Mapping[str, T]) -> T:
    if name in among:
        return among[name]
    near = get_close_matches(name, among, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(among)) or 'none'}"
    raise BadRequest(f"there is no {kind} {name!r}: {hint}", field=kind)
