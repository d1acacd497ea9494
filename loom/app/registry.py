"""Combine the built-in tools, the user's app and the enabled packages into one registry without duplicate names."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from loom.activities.ports import LLMProvider, Tool
from loom.activities.toolbox.code_digest import code_digest
from loom.activities.toolbox.user_tools.dependencies import Dependencies, with_dependencies
from loom.activities.toolbox.user_tools.tool import UserTool
from loom.app import agent_files, crew_files
from loom.app.loading import load_app, project_of
from loom.app.loom_app import LoomApp
from loom.app.packages import app_of, enabled, skills_of
from loom.domain.agents.code_node import NodeFunction
from loom.domain.agents.definitions import AgentDefinition, check_tools
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.hooks import Hook, Registered, applies_to, check_hooks, functions_of
from loom.domain.agents.inheritance import with_inherited
from loom.domain.core.errors import BadRequest
from loom.domain.core.task_routing import TaskHandler
from loom.domain.crews.crew import Crew
from loom.domain.memory.knowledge import KnowledgeFolder
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.skills.catalog import SkillFolder
from loom.domain.tools.mcp_servers import McpServer

T = TypeVar("T")
BUILT_IN = "built-in"


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """All items that a worker serves: the built-in tools and the contents of the app and the packages."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    """All tools by name, including the built-in ones."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The origin of each tool: `built-in`, `app …`, `package NAME VERSION`."""
    agents: Mapping[str, AgentDefinition] = field(default_factory=dict)
    mcp_servers: tuple[McpServer, ...] = ()
    hooks: tuple[Registered, ...] = ()
    """Hooks and interceptors, in registration order."""
    handlers: tuple[TaskHandler, ...] = ()
    """Handlers for the tasks on the bus."""
    nodes: Mapping[str, NodeFunction] = field(default_factory=dict)
    """The functions of the nodes of code. The nodes themselves are among the agents."""
    skills: tuple[SkillFolder, ...] = ()
    crews: Mapping[str, Crew] = field(default_factory=dict)
    providers: Mapping[str, LLMProvider] = field(default_factory=dict)
    """Model providers that the app registers, by prefix."""
    knowledge: Mapping[str, KnowledgeFolder] = field(default_factory=dict)
    """Folders that workers index into knowledge bases, by name."""
    dependencies: Dependencies = field(default_factory=Dependencies)
    """Dependencies that a worker opens when it starts and injects by type into tools, hooks and handlers."""

    @property
    def tool_code(self) -> Mapping[str, str]:
        """The code digests of user-defined tools whose source can be read."""
        return {name: tool.code for name, tool in self.tools.items() if isinstance(tool, UserTool) and tool.code}

    @property
    def hook_code(self) -> Mapping[str, str]:
        """The code digests of hooks and interceptors whose source can be read."""
        pieces: dict[str, list[Callable[..., Any] | None]] = {}
        for each in self.hooks:
            pieces.setdefault(each.name, []).extend(functions_of(each))
        return {name: code for name, code in ((n, code_digest(*of)) for n, of in pieces.items()) if code}

    @property
    def node_code(self) -> Mapping[str, str]:
        """The code digests of nodes whose source can be read."""
        return {name: node.code for name, node in self.nodes.items() if node.code}

    def hooks_for(self, agent: str, pinned: Iterable[str] = ()) -> tuple[Registered, ...]:
        """Return the agent's hooks: hooks for all agents, hooks that its definition names, and `pinned` hooks."""
        definition = self.agents.get(agent)
        named = {*pinned, *(definition.hooks if definition else ())}
        return tuple(each for each in self.hooks if applies_to(each, agent, named))


def sources_of(app: str | LoomApp | None, packages: str) -> Mapping[str, LoomApp]:
    """Return the apps that the settings name, with their origins. Raises BadRequest if one can't be loaded."""
    sources = {f"package {package.title}": app_of(package) for package in enabled(packages)}
    if isinstance(app, LoomApp):
        return {**sources, "app": app}
    return {**sources, f"app {app}": load_app(app)} if app else sources


def collect(
    *,
    built_in: Mapping[str, Tool],
    app: str | LoomApp | None = None,
    packages: str = "",
    tool_timeout: float = 120.0,
    home: Path | None = None,
    servers: Sequence[McpServer] = (),
    agents: Sequence[Path] = (),
    crews: Sequence[Path] = (),
    files: Iterable[Path] = (),
    checks_rules: bool = True,
) -> Registry:
    """Load the app, packages, agents and crews named in the settings.

    `servers` are the MCP servers in the settings. `agents` and `crews` are folders of agent files and crew files.
    Folders next to the app's module are read too, and so are the agents in `files`. `home` is the directory for Loom's
    own state. If `checks_rules` is false, permission rules aren't checked.

    Raises BadRequest if something is missing or invalid, or if two names clash.
    """
    chosen = enabled(packages)
    sources = sources_of(app, packages)
    folders, crew_folders = [*agents], [*crews]
    if isinstance(app, str) and app:
        folders.append(project_of(app) / agent_files.FOLDER)
        crew_folders.append(project_of(app) / crew_files.FOLDER)
    named = (path.resolve() for path in files)
    return merged(
        sources,
        built_in=built_in,
        skills=skills_of(chosen),
        tool_timeout=tool_timeout,
        home=home,
        servers=servers,
        written=agent_files.read_agents(dict.fromkeys((*named, *agent_files.agent_files(folders)))),
        teams=crew_files.read_crews(crew_files.crew_files(crew_folders)),
        checks_rules=checks_rules,
    )


def merged(
    sources: Mapping[str, LoomApp],
    *,
    built_in: Mapping[str, Tool],
    skills: Iterable[SkillFolder] = (),
    tool_timeout: float = 120.0,
    home: Path | None = None,
    servers: Sequence[McpServer] = (),
    written: Iterable[AgentDefinition] = (),
    teams: Iterable[Crew] = (),
    checks_rules: bool = True,
) -> Registry:
    """Merge several apps, and agents and crews from files, into one registry.

    Raises BadRequest if two names clash. The error names the origins of both.
    """
    apps = tuple(sources.items())
    dependencies = Dependencies([one for app in sources.values() for one in app.dependencies])
    app_tools = (
        (name, tool, f"{source}: {app.origins[name]}") for source, app in apps for name, tool in app.tools.items()
    )
    all_tools = [*((name, tool, BUILT_IN) for name, tool in built_in.items()), *app_tools]
    tools = _each_once(
        "tool", ((name, _settled(tool, tool_timeout, home, dependencies), origin) for name, tool, origin in all_tools)
    )
    of_settings = ((server, "the settings'") for server in servers)
    of_apps = ((server, source) for source, app in apps for server in app.mcp_servers)
    mcp_servers = _each_once("server", ((server.name, server, origin) for server, origin in (*of_settings, *of_apps)))
    all_agents = (*(agent for _, app in apps for agent in app.list_agents()), *written)
    agents = _each_once("agent", ((agent.name, agent, agent.origin) for agent in all_agents))
    all_crews = (*(crew for _, app in apps for crew in app.list_crews()), *teams)
    crews = _each_once("crew", ((crew.name, crew, crew.origin) for crew in all_crews))
    all_providers = ((prefix, one, source) for source, app in apps for prefix, one in app.providers.items())
    all_handlers = (
        (name, _handler(one, dependencies), f"{source}: {one.origin}")
        for source, app in apps
        for name, one in app.handlers.items()
    )
    nodes = {
        name: replace(node, function=_filled(node.function, dependencies, "node", name, 1))
        for _, app in apps
        for name, node in app.nodes.items()
    }
    all_bases = ((name, base, base.origin) for _, app in apps for name, base in app.knowledge.items())
    check_tools(agents.values(), tools, tuple(mcp_servers))
    if checks_rules:
        _refuse_dead_rules((*agents.values(), *crews.values()), tools, tuple(mcp_servers))
    hooks = tuple(_with_dependencies(hook, dependencies) for app in sources.values() for hook in app.hooks)
    check_hooks(hooks, agents.values())
    return Registry(
        tools=dict(sorted(tools.items())),
        origins={name: origin for name, _, origin in all_tools},
        agents=with_inherited(agents),
        mcp_servers=tuple(mcp_servers.values()),
        hooks=hooks,
        nodes=nodes,
        handlers=tuple(_each_once("handler", all_handlers).values()),
        skills=(*(folder for source, app in sources.items() for folder in _of_app(source, app)), *skills),
        crews=dict(sorted(crews.items())),
        providers=_each_once("provider", all_providers),
        knowledge=_each_once("knowledge base", all_bases),
        dependencies=dependencies,
    )


def _refuse_dead_rules(
    owners: Iterable[AgentDefinition | Crew], tools: Mapping[str, Tool], servers: Sequence[str]
) -> None:
    """Raise BadRequest for rules that can never match.

    Such a rule has no effect, and Loom would reject every run that has it.
    """
    specs = [tool.spec for tool in tools.values()]
    for owner in owners:
        if dead := dead_rules(owner.permissions, specs, servers=servers):
            kind = "crew" if isinstance(owner, Crew) else "agent"
            raise BadRequest(f"{kind} {owner.name!r} ({owner.origin}): {'; '.join(dead)}", field="permissions")


def _of_app(source: str, app: LoomApp) -> Iterator[SkillFolder]:
    yield from (SkillFolder(path=path, source=source) for path in app.skills)


def _each_once(kind: str, found: Iterable[tuple[str, T, str]]) -> dict[str, T]:
    """Return the items by name. Raises BadRequest with both origins if a name occurs twice."""
    things: dict[str, T] = {}
    origins: dict[str, str] = {}
    for name, thing, origin in found:
        if name in things:
            raise BadRequest(
                f"two {kind}s are called {name!r}: one is {origins[name]}, the other {origin}: rename or remove one",
                field=kind,
            )
        things[name], origins[name] = thing, origin
    return things


_GIVEN: Final = {Moment.START: 1, Moment.TOOL_CALL: 2, Moment.COMPLETE: 2, Moment.ERROR: 2}
"""The number of arguments that are passed to each kind of hook."""


def _with_dependencies(hook: Registered, dependencies: Dependencies) -> Registered:
    """Return the hook or interceptor with its dependencies injected."""
    if isinstance(hook, Hook):
        filled = _filled(hook.function, dependencies, "hook", hook.name, _GIVEN[hook.moment])
        return replace(hook, function=filled)
    before, after = (
        side and _filled(side, dependencies, "interceptor", hook.name, given)
        for side, given in ((hook.before, 1), (hook.after, 2))
    )
    return replace(hook, before=before, after=after)


def _handler(handler: TaskHandler, dependencies: Dependencies) -> TaskHandler:
    return replace(handler, function=_filled(handler.function, dependencies, "handler", handler.name, 1))


def _filled(
    function: Callable[..., Any], dependencies: Dependencies, kind: str, name: str, given: int
) -> Callable[..., Any]:
    return with_dependencies(function, dependencies, f"{kind} {name!r}", given)


def _settled(tool: Tool, seconds: float, home: Path | None, dependencies: Dependencies) -> Tool:
    """Return the tool with its dependencies injected and with the home directory from the settings.

    A tool that doesn't define its own timeout receives the timeout from the settings.
    """
    if not isinstance(tool, UserTool):
        return tool
    tool = tool.with_dependencies(dependencies)
    return replace(tool, home=home, spec=tool.spec if tool.has_own_timeout else replace(tool.spec, timeout=seconds))
