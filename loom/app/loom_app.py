"""What a user's module builds and the worker loads: tools, agents, skills, MCP servers and hooks.

    from loom import LoomApp

    app = LoomApp()

    @app.tool(effect="read")
    def count_words(path: Path) -> int:
        "Count the words of a file."
        return len(path.read_text().split())

`loom worker --app my_tools:app` serves it. An app is filled while its module is imported and is only read afterwards;
nothing is global, and importing this module does nothing.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, Unpack, overload

from loom.activities.ports import LLMProvider, Tool
from loom.activities.toolbox.user_tools.dependencies import Dependency, dependency_of, named
from loom.activities.toolbox.user_tools.options import ToolOptions, check_name
from loom.activities.toolbox.user_tools.registration import origin_of, tool_of
from loom.activities.toolbox.user_tools.tool import UserTool
from loom.app.forms.agent import AgentFields, plain_fields, read_agent
from loom.app.forms.crew import CrewFields, listed, read_crew
from loom.app.forms.handler import handler_of
from loom.app.forms.hook import HookDecorator, InterceptorOptions, interceptor_of
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.hook_steps import Moment
from loom.domain.agents.hooks import Registered
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest
from loom.domain.core.task_routing import TaskHandler
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import CREATE_PLAN
from loom.domain.crews.crew import Crew
from loom.domain.memory.knowledge import KnowledgeFolder, checked_name
from loom.domain.tools.mcp_servers import McpServer, read_servers

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
I = TypeVar("I")  # noqa: E741 - an interceptor, of whatever class


class LoomApp:
    """A registry of everything that a user's module brings. Names must be unique, and errors are raised at once."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._origins: dict[str, str] = {}
        self._agents: dict[str, AgentDefinition] = {}
        self._servers: dict[str, McpServer] = {}
        self._crews: dict[str, Crew] = {}
        self._skills: dict[str, None] = {}
        self._providers: dict[str, LLMProvider] = {}
        self._knowledge: dict[str, KnowledgeFolder] = {}
        self._hooks: list[Registered] = []
        self._handlers: dict[str, TaskHandler] = {}
        self._dependencies: dict[Any, Dependency] = {}
        self.on_start = HookDecorator(self._hooks.append, Moment.START)
        """Before a run's first turn: `(run)` → None, `Deny(reason)` or `Ask(reason)`. If it fails, the run fails."""
        self.on_planning = HookDecorator(self._hooks.append, Moment.TOOL_CALL, tools=(CREATE_PLAN,))
        """Before a plan is created: like `on_tool_call`, but only for calls of `create_plan`."""
        self.on_tool_call = HookDecorator(self._hooks.append, Moment.TOOL_CALL)
        """Before each tool call: `(call, run_id)` → None, `Deny(reason)` or `Ask(reason)`. It can make a verdict
        stricter, never looser; one that fails blocks the call."""
        self.on_complete = HookDecorator(self._hooks.append, Moment.COMPLETE)
        """When a run has ended other than by failing: `(result, run)`. What it answers is dropped."""
        self.on_error = HookDecorator(self._hooks.append, Moment.ERROR)
        """When a run has failed: `(error, run)`. What it answers is dropped."""

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
        made = tool_of(tool, options, self._dependencies)
        name, origin = made.spec.name, origin_of(tool)
        check_name(name, origin)
        refuse_twice("tool", name, self._origins.get(name), origin)
        self._tools[name] = made
        self._origins[name] = origin
        return made

    def provide(self, factory: F) -> F:
        """Provide a value to every tool, hook, interceptor and task handler that has a parameter of its type.

        The return annotation of the factory names the type: `-> Pool` for a function, async or not, and
        `-> AsyncIterator[Pool]` or `-> Iterator[Pool]` for a generator or a context manager, which is closed when the
        worker stops. A class provides itself. Parameters of a factory are filled with what was provided before it.
        Works as a decorator, too. Raises BadRequest when the type is unclear or is provided already.
        """
        made = dependency_of(factory, origin_of(factory))
        self._provide({**self._dependencies, **self._once(made)})
        return factory

    def _once(self, made: Dependency) -> dict[Any, Dependency]:
        if (first := self._dependencies.get(made.kind)) is not None:
            raise BadRequest(
                f"{named(made.kind)} is provided twice: by {first.origin} and by {made.origin}: remove one",
                field="provide",
            )
        return {made.kind: made}

    def _provide(self, dependencies: dict[Any, Dependency]) -> None:
        """Take these over, and read the tools again: parameters of these types are arguments no longer."""
        self._dependencies = dependencies
        for name, tool in self._tools.items():
            if dependencies and isinstance(tool, UserTool):
                self._tools[name] = tool.with_types(dependencies)

    def get_tool(self, name: str) -> Tool:
        """The tool of that name; raises BadRequest with the nearest one."""
        return found("tool", name, self._tools)

    def list_tools(self) -> tuple[ToolSpec, ...]:
        """What model and run see of every tool, by name."""
        return tuple(tool.spec for _, tool in sorted(self._tools.items()))

    def create_agent(self, name: str, **fields: Unpack[AgentFields]) -> AgentDefinition:
        """Define an agent that requests can name, by the fields of an agent file (docs/agents.md).

        What is left open comes from the agent that it `extends`, or from the worker's settings. An agent called
        `default` takes the place of the built-in one.
        """
        origin = caller()
        refuse_twice("agent", name, self._agents.get(name), origin)
        self._agents[name] = read_agent({**plain_fields(fields), "name": name}, name=name, origin=origin)
        return self._agents[name]

    def get_agent(self, name: str) -> AgentDefinition:
        """The agent of that name; raises BadRequest with the nearest one."""
        return found("agent", name, self._agents)

    def list_agents(self) -> tuple[AgentDefinition, ...]:
        """Every agent, by name."""
        return tuple(agent for _, agent in sorted(self._agents.items()))

    def create_crew(self, name: str, **fields: Unpack[CrewFields]) -> Crew:
        """Define several agents that share a task, by the fields of a crew file (docs/crews.md)."""
        origin = caller()
        refuse_twice("crew", name, self._crews.get(name), origin)
        self._crews[name] = read_crew({**listed(fields), "name": name}, name=name, origin=origin)
        return self._crews[name]

    def get_crew(self, name: str) -> Crew:
        """The crew of that name; raises BadRequest with the nearest one."""
        return found("crew", name, self._crews)

    def list_crews(self) -> tuple[Crew, ...]:
        """Every crew, by name."""
        return tuple(crew for _, crew in sorted(self._crews.items()))

    def mcp_server(self, name: str, **given: Any) -> McpServer:
        """Add an MCP server as a source of tools; the options are those of `[mcp.NAME]` in `loom.toml`."""
        if name in self._servers:
            raise BadRequest(f"two MCP servers are called {name!r}: give one another name", field=f"mcp.{name}")
        table = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        (server,) = read_servers({name: table})
        self._servers[name] = server
        return server

    def register_skill(self, folder: str | Path) -> Path:
        """Add a folder with a SKILL.md, or a folder of such; a relative one is meant from the file of the caller."""
        path = folder_of(folder, caller(), "skills")
        self._skills[str(path)] = None
        return path

    def register_provider(self, prefix: str, provider: LLMProvider) -> None:
        """Have models named `prefix:name` answered by this: any object with an `answer` as `LLMProvider` says."""
        if prefix in self._providers or not prefix.isidentifier():
            raise BadRequest(f"{prefix!r} cannot be a prefix of models: write another, such as ollama", field="prefix")
        if not callable(getattr(provider, "answer", None)):
            raise BadRequest(f"the provider {prefix!r} has no method `answer`", field="provider")
        self._providers[prefix] = provider

    def register_knowledge(self, name: str, folder: str | Path) -> Path:
        """Add a folder of documents as a knowledge base, which workers keep up to date; relative as for skills."""
        origin = caller()
        refuse_twice("knowledge base", name, self._knowledge.get(name), origin)
        path = folder_of(folder, origin, "documents")
        self._knowledge[name] = KnowledgeFolder(name=checked_name(name), path=str(path), origin=origin)
        return path

    def intercept(self, interceptor: I, /, **options: Unpack[InterceptorOptions]) -> I:
        """Put an interceptor around runs and tool calls: `before(task)`, `after(task, result)`, or both; async or not.

        `before` answers None, the task with other parameters, `Instead(result)` or `Deny(reason)`; `after` answers None
        or another text. They go in the order of registration, `after` backwards.
        """
        self._hooks.append(interceptor_of(interceptor, options))
        return interceptor

    def on_task(self, pattern: str, /, *, name: str = "") -> Callable[[F], F]:
        """Call the decorated function for each Task on the bus that the pattern takes: docs/events.md."""
        if not isinstance(pattern, str):
            raise BadRequest('write @app.on_task("node.*"): which Tasks it is for has to be said', field="on_task")

        def register(function: F) -> F:
            handler = handler_of(function, pattern, name, origin_of(function))
            refuse_twice("handler", handler.name, self._handlers.get(handler.name), handler.origin)
            self._handlers[handler.name] = handler
            return function

        return register

    def include(self, other: "LoomApp") -> None:
        """Take in everything of another app; raises BadRequest when a name is there twice."""
        agents = {agent.name: agent for agent in other.list_agents()}
        servers = {server.name: server for server in other.mcp_servers}
        crews = {crew.name: crew for crew in other.list_crews()}
        pairs: dict[str, tuple[dict[str, Any], Mapping[str, Any]]] = {
            "tool": (self._tools, other.tools),
            "agent": (self._agents, agents),
            "server": (self._servers, servers),
            "crew": (self._crews, crews),
            "provider": (self._providers, other.providers),
            "handler": (self._handlers, other.handlers),
            "knowledge base": (self._knowledge, other.knowledge),
        }
        for kind, (mine, theirs) in pairs.items():
            if twice := sorted(set(mine) & set(theirs)):
                raise BadRequest(f"both apps have a {kind} {twice[0]!r}: rename one", field=kind)
        provided = [self._once(dependency) for dependency in other.dependencies]
        for mine, theirs in pairs.values():
            mine.update(theirs)
        self._provide({kind: one for each in (self._dependencies, *provided) for kind, one in each.items()})
        self._origins |= other.origins
        self._hooks += other.hooks
        self._skills |= dict.fromkeys(other.skills)

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """What the app provides, in the order of registration."""
        return tuple(self._dependencies.values())

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
    def providers(self) -> Mapping[str, LLMProvider]:
        """Every provider by the prefix of its models."""
        return MappingProxyType(self._providers)

    @property
    def skills(self) -> tuple[str, ...]:
        """Folders of skills, in the order of registration."""
        return tuple(self._skills)

    @property
    def knowledge(self) -> Mapping[str, KnowledgeFolder]:
        """Folders that are knowledge bases, by the names of these."""
        return MappingProxyType(self._knowledge)

    @property
    def hooks(self) -> tuple[Registered, ...]:
        """Every hook and interceptor, in the order of registration."""
        return tuple(self._hooks)

    @property
    def handlers(self) -> Mapping[str, TaskHandler]:
        """Every handler of Tasks by name."""
        return MappingProxyType(self._handlers)


def caller() -> str:
    """The line of the user's module that called the caller of this."""
    frame = inspect.currentframe()
    outer = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    return "unknown" if outer is None else f"{outer.f_code.co_filename}:{outer.f_lineno}"


def refuse_twice(kind: str, name: str, first: object, origin: str) -> None:
    """Raises BadRequest where there is a `first` of that name: the thing itself, or where it is from."""
    if first is not None:
        first = getattr(first, "origin", first)
        raise BadRequest(f"two {kind}s are called {name!r}: {first} and {origin}: give one another name", field=kind)


def folder_of(given: str | Path, line: str, what: str) -> Path:
    """A folder that has to be there; a relative one is meant from the file of that line."""
    path = (Path(line.rpartition(":")[0]).parent / Path(given).expanduser()).resolve()
    if not path.is_dir():
        raise BadRequest(f"there is no folder {path} with {what}", field=what)
    return path


def found(kind: str, name: str, among: Mapping[str, T]) -> T:
    """The one of that name; raises BadRequest with the nearest one."""
    if name in among:
        return among[name]
    hint = nearest(name, among, f"there are {', '.join(sorted(among)) or 'none'}")
    raise BadRequest(f"there is no {kind} {name!r}: {hint}", field=kind)
