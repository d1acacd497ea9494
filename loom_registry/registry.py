"""What a worker serves: the built-in tools, the user's app and the enabled packages, with no name given twice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from activities.ports import Tool
from activities.toolbox.user_tool import UserTool
from loom_app import LoomApp
from loom_domain.agent_definitions import AgentDefinition, check_tools
from loom_domain.errors import BadRequest
from loom_domain.hooks import ToolCallHook
from loom_domain.mcp import McpServer
from loom_registry.loading import load_app
from loom_registry.packages import SkillFolder, app_of, enabled, installed, skills_of

BUILT_IN = "built-in"


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """Everything that app and packages bring, beside the built-in tools."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    """All tools by name, the built-in ones included."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each tool comes from: `built-in`, `app …`, `package NAME VERSION`."""
    agents: Mapping[str, AgentDefinition] = field(default_factory=dict)
    mcp_servers: tuple[McpServer, ...] = ()
    hooks: tuple[ToolCallHook, ...] = ()
    skills: tuple[SkillFolder, ...] = ()


def collect(
    *,
    built_in: Mapping[str, Tool],
    app: str | None = None,
    packages: str = "",
    tool_timeout: float = 120.0,
    servers: Sequence[McpServer] = (),
) -> Registry:
    """Load what the settings name; raises BadRequest for whatever is not there, is broken or clashes.

    `servers` are the MCP servers that the settings bring themselves.
    """
    chosen = enabled(packages, installed())
    sources = {f"package {package.title}": app_of(package) for package in chosen}
    if app:
        sources[f"app {app}"] = load_app(app)
    return merged(sources, built_in=built_in, skills=skills_of(chosen), tool_timeout=tool_timeout, servers=servers)


def merged(
    sources: Mapping[str, LoomApp],
    *,
    built_in: Mapping[str, Tool],
    skills: Iterable[SkillFolder] = (),
    tool_timeout: float = 120.0,
    servers: Sequence[McpServer] = (),
) -> Registry:
    """Several apps as one registry; raises BadRequest that names both sides of a clash."""
    tools, origins = dict(built_in), dict.fromkeys(built_in, BUILT_IN)
    agents: dict[str, AgentDefinition] = {}
    known = {server.name: server for server in servers}
    for source, app in sources.items():
        for name, tool in app.tools.items():
            _refuse_twice("tool", name, origins, f"{source}: {app.origins[name]}")
            tools[name], origins[name] = _with_timeout(tool, tool_timeout), f"{source}: {app.origins[name]}"
        for agent in app.list_agents():
            _refuse_twice("agent", agent.name, {a.name: a.origin for a in agents.values()}, agent.origin)
            agents[agent.name] = agent
        for server in app.mcp_servers:
            _refuse_twice("server", server.name, dict.fromkeys(known, "settings, or another app"), source)
            known[server.name] = server
    check_tools(agents.values(), tools, tuple(known))
    return Registry(
        tools=dict(sorted(tools.items())),
        origins=origins,
        agents=agents,
        mcp_servers=tuple(known.values()),
        hooks=tuple(hook for app in sources.values() for hook in app.hooks),
        skills=tuple(skills),
    )


def _refuse_twice(kind: str, name: str, origins: Mapping[str, str], origin: str) -> None:
    if name in origins:
        raise BadRequest(
            f"two {kind}s are called {name!r}: one is {origins[name]}, the other {origin}: rename or leave out one",
            field=kind,
        )


def _with_timeout(tool: Tool, seconds: float) -> Tool:
    """The tool with the setting's time limit where its registration gave none."""
    if not isinstance(tool, UserTool) or tool.has_own_timeout:
        return tool
    return replace(tool, spec=replace(tool.spec, timeout=seconds))
