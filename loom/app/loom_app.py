"""Define tools, agents, skills, MCP servers and hooks in your own module, for a worker to load.

    from loom import LoomApp

    app = LoomApp()

    @app.tool(effect="read")
    def count_words(path: Path) -> int:
        "Count the words of a file."
        return len(path.read_text().split())

To serve the app, run `loom worker --app my_tools:app`. Register all items while the app's module is being imported.
Afterwards, Loom only reads the app. There is no global state, and importing this module has no side effects.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, Unpack, overload

from loom.activities.bus import Transport
from loom.activities.knowledge.ports import KnowledgeStore
from loom.activities.memory.ports import Embedder, MemoryStore
from loom.activities.ports import ContextCompressor, ContextSource, LLMProvider, Tool
from loom.activities.toolbox.user_tools.dependencies import Dependency, dependency_of, refuse_second
from loom.activities.toolbox.user_tools.options import ToolOptions, check_name
from loom.activities.toolbox.user_tools.registration import origin_of, tool_of
from loom.activities.toolbox.user_tools.tool import UserTool
from loom.app.extensions import Extensions
from loom.app.forms.agent import AgentFields, plain_fields, read_agent
from loom.app.forms.crew import CrewFields, listed, read_crew
from loom.app.forms.handler import handler_of
from loom.app.forms.hook import HookDecorator, InterceptorOptions, interceptor_of
from loom.app.forms.node import NodeOptions, node_of
from loom.domain.agents.code_node import NodeFunction
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
I = TypeVar("I")  # noqa: E741 - an interceptor of any class


class LoomApp:
    """A registry of the tools, agents, hooks and other items that your module defines. Names must be unique."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._origins: dict[str, str] = {}
        self._agents: dict[str, AgentDefinition] = {}
        self._servers: dict[str, McpServer] = {}
        self._nodes: dict[str, NodeFunction] = {}
        self._crews: dict[str, Crew] = {}
        self._skills: dict[str, None] = {}
        self._providers: dict[str, LLMProvider] = {}
        self._knowledge: dict[str, KnowledgeFolder] = {}
        self._extensions = Extensions()
        self._hooks: list[Registered] = []
        self._handlers: dict[str, TaskHandler] = {}
        self._dependencies: dict[Any, Dependency] = {}
        self.on_start = HookDecorator(self._hooks.append, Moment.START)
        """Runs before a run's first turn. The hook receives `(run)` and returns None, `Deny(reason)` or `Ask(reason)`.
        If the hook fails, the run fails."""
        self.on_planning = HookDecorator(self._hooks.append, Moment.TOOL_CALL, tools=(CREATE_PLAN,))
        """Runs before a plan is created. It works like `on_tool_call`, but only for calls to `create_plan`."""
        self.on_tool_call = HookDecorator(self._hooks.append, Moment.TOOL_CALL)
        """Runs before each tool call. The hook receives `(call, run_id)` and returns None, `Deny(reason)` or
        `Ask(reason)`. It can make a verdict stricter, but not more lenient. If the hook fails, the call is blocked."""
        self.on_complete = HookDecorator(self._hooks.append, Moment.COMPLETE)
        """Runs when a run ends without failing. The hook receives `(result, run)`, and its return value is ignored."""
        self.on_error = HookDecorator(self._hooks.append, Moment.ERROR)
        """Runs when a run fails. The hook receives `(error, run)`, and its return value is ignored."""

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Register the decorated function as a tool and return the function unchanged.

        Options: name, description, effect, timeout, parallel, ephemeral, queue, permission, available, scope.
        """

        def register(decorated: F) -> F:
            self.register_tool(decorated, **options)
            return decorated

        if function is None:
            return register
        if isinstance(function, str):
            raise BadRequest(f'write @app.tool(name="{function}"): the name must be a keyword argument', field="tool")
        return register(function)

    def register_tool(self, tool: object, /, **options: Unpack[ToolOptions]) -> Tool:
        """Register a function, a tool in class form (an object or a class), or any object that implements `Tool`."""
        made = tool_of(tool, options, self._dependencies)
        name, origin = made.spec.name, origin_of(tool)
        check_name(name, origin)
        refuse_twice("tool", name, self._origins.get(name), origin)
        self._tools[name] = made
        self._origins[name] = origin
        return made

    def provide(self, factory: F) -> F:
        """Provide a value to every tool, hook, interceptor and task handler that has a parameter of its type.

        The factory's return annotation determines the type: `-> Pool` for a sync or async function, and
        `-> AsyncIterator[Pool]` or `-> Iterator[Pool]` for a generator or a context manager. Loom closes generators and
        context managers when the worker stops. A class provides instances of itself. If a factory's parameter has no
        default, it receives a value that was provided earlier. You can also use this method as a decorator.

        Raises BadRequest if the type can't be determined or is already provided.
        """
        made = dependency_of(factory, origin_of(factory))
        refuse_second(self._dependencies.get(made.kind), made)
        self._provide({**self._dependencies, made.kind: made})
        return factory

    def _provide(self, dependencies: dict[Any, Dependency]) -> None:
        """Replace the dependencies and inspect the tools' signatures again.

        Parameters of the provided types are then injected and no longer appear among a tool's arguments.
        """
        self._dependencies = dependencies
        for name, tool in self._tools.items():
            if dependencies and isinstance(tool, UserTool):
                self._tools[name] = tool.with_types(dependencies)

    def get_tool(self, name: str) -> Tool:
        """Return the tool with this name. Raises BadRequest if there is no such tool, and suggests a similar name."""
        return found("tool", name, self._tools)

    def list_tools(self) -> tuple[ToolSpec, ...]:
        """Return the specs of all tools, sorted by name."""
        return tuple(tool.spec for _, tool in sorted(self._tools.items()))

    def create_agent(self, name: str, **fields: Unpack[AgentFields]) -> AgentDefinition:
        """Define an agent for requests to use. The arguments are the fields of an agent file (docs/agents.md).

        Omitted fields come from the agent that this one `extends`, or from the worker's settings. An agent named
        `default` replaces the built-in agent.
        """
        origin = caller()
        refuse_twice("agent", name, self._agents.get(name), origin)
        self._agents[name] = read_agent({**plain_fields(fields), "name": name}, name=name, origin=origin)
        return self._agents[name]

    def get_agent(self, name: str) -> AgentDefinition:
        """Return the agent with this name. Raises BadRequest if there is no such agent, and suggests a similar name."""
        return found("agent", name, self._agents)

    def list_agents(self) -> tuple[AgentDefinition, ...]:
        """Return all agents, sorted by name."""
        return tuple(agent for _, agent in sorted(self._agents.items()))

    @overload
    def node(self, function: F, /) -> F: ...
    @overload
    def node(self, /, **options: Unpack[NodeOptions]) -> Callable[[F], F]: ...

    def node(self, function: Any = None, /, **options: Unpack[NodeOptions]) -> Any:
        """Register the decorated function as a node of code: an agent whose work the function does instead of a model.

        The function receives a `Message` and returns a `Message` or a text. It can be async or sync. Crews, agents and
        requests use the node by its name, like any other agent. Options: name, description, effect, timeout, attempts.
        """

        def register(decorated: F) -> F:
            origin = origin_of(decorated)
            agent, made = node_of(decorated, options, origin)
            refuse_twice("agent", agent.name, self._agents.get(agent.name), origin)
            self._agents[agent.name], self._nodes[agent.name] = agent, made
            return decorated

        if isinstance(function, str):
            raise BadRequest(f'write @app.node(name="{function}"): the name must be a keyword argument', field="node")
        return register if function is None else register(function)

    def create_crew(self, name: str, **fields: Unpack[CrewFields]) -> Crew:
        """Define a crew of agents that share a task. The arguments are the fields of a crew file (docs/crews.md)."""
        origin = caller()
        refuse_twice("crew", name, self._crews.get(name), origin)
        self._crews[name] = read_crew({**listed(fields), "name": name}, name=name, origin=origin)
        return self._crews[name]

    def get_crew(self, name: str) -> Crew:
        """Return the crew with this name. Raises BadRequest if there is no such crew, and suggests a similar name."""
        return found("crew", name, self._crews)

    def list_crews(self) -> tuple[Crew, ...]:
        """Return all crews, sorted by name."""
        return tuple(crew for _, crew in sorted(self._crews.items()))

    def mcp_server(self, name: str, **given: Any) -> McpServer:
        """Add an MCP server as a source of tools. The options are the same as under `[mcp.NAME]` in `loom.toml`."""
        if name in self._servers:
            raise BadRequest(f"two MCP servers are called {name!r}: rename one of them", field=f"mcp.{name}")
        table = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        (server,) = read_servers({name: table})
        self._servers[name] = server
        return server

    def register_skill(self, folder: str | Path) -> Path:
        """Add a folder that contains a SKILL.md file, or a folder of such folders.

        A relative path is resolved against the folder of the calling file.
        """
        path = folder_of(folder, caller(), "skills")
        self._skills[str(path)] = None
        return path

    def register_provider(self, prefix: str, provider: LLMProvider) -> None:
        """Register an object that implements `LLMProvider` as the provider for all models named `prefix:name`."""
        if prefix in self._providers or not prefix.isidentifier():
            raise BadRequest(
                f"{prefix!r} cannot be a prefix for models: use another one, such as ollama", field="prefix"
            )
        if not callable(getattr(provider, "answer", None)):
            raise BadRequest(f"the {prefix!r} provider has no `answer` method", field="provider")
        self._providers[prefix] = provider

    def register_embedder(self, embedder: Embedder) -> None:
        """Compute the vectors of memories and knowledge bases with your own embedder. LOOM_EMBEDDER must be `auto`."""
        self._extensions = self._extensions.with_one("embedder", embedder)

    def register_memory_store(self, store: MemoryStore) -> None:
        """Keep the memories of runs in your own store, including their vectors."""
        self._extensions = self._extensions.with_one("memory_store", store)

    def register_knowledge_store(self, store: KnowledgeStore) -> None:
        """Keep the chunks of knowledge bases and their vectors in your own store, such as a vector database."""
        self._extensions = self._extensions.with_one("knowledge_store", store)

    def register_context_source(self, name: str, source: ContextSource) -> None:
        """Add what `source.recall(question, origin)` returns to the context that models see."""
        self._extensions = self._extensions.with_source(name, source)

    def register_compressor(self, compressor: ContextCompressor) -> None:
        """Write the summaries of long conversations yourself. If the compressor fails, Loom writes them."""
        self._extensions = self._extensions.with_one("compressor", compressor)

    def register_transport(self, transport: Transport) -> None:
        """Deliver Tasks between publishers and handlers with your own transport, in place of the one in the settings.

        A worker closes it when it stops.
        """
        self._extensions = self._extensions.with_one("transport", transport)

    def register_knowledge(self, name: str, folder: str | Path) -> Path:
        """Add a folder of documents as a knowledge base, which workers keep up to date.

        A relative path is resolved against the folder of the calling file.
        """
        origin = caller()
        refuse_twice("knowledge base", name, self._knowledge.get(name), origin)
        path = folder_of(folder, origin, "documents")
        self._knowledge[name] = KnowledgeFolder(name=checked_name(name), path=str(path), origin=origin)
        return path

    def intercept(self, interceptor: I, /, **options: Unpack[InterceptorOptions]) -> I:
        """Wrap runs and tool calls with an interceptor that has `before(task)`, `after(task, result)`, or both.

        Both methods can be sync or async. `before` returns None, the task with changed parameters, `Instead(result)` or
        `Deny(reason)`. `after` returns None or a replacement text. Interceptors' `before` methods run in registration
        order, and their `after` methods in reverse order.
        """
        self._hooks.append(interceptor_of(interceptor, options))
        return interceptor

    def on_task(self, pattern: str, /, *, name: str = "") -> Callable[[F], F]:
        """Call the decorated function for each Task on the bus that matches the pattern (see docs/events.md)."""
        if not isinstance(pattern, str):
            raise BadRequest(
                'write @app.on_task("node.*"): a handler needs a pattern that selects its Tasks', field="on_task"
            )

        def register(function: F) -> F:
            handler = handler_of(function, pattern, name, origin_of(function))
            refuse_twice("handler", handler.name, self._handlers.get(handler.name), handler.origin)
            self._handlers[handler.name] = handler
            return function

        return register

    def include(self, other: "LoomApp") -> None:
        """Add all definitions from another app to this one. Raises BadRequest if both apps define the same name."""
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
        for dependency in other.dependencies:
            refuse_second(self._dependencies.get(dependency.kind), dependency)
        extensions = self._extensions.with_all(other.extensions)
        for mine, theirs in pairs.values():
            mine.update(theirs)
        self._extensions = extensions
        self._provide({**self._dependencies, **{one.kind: one for one in other.dependencies}})
        self._origins |= other.origins
        self._nodes |= other.nodes
        self._hooks += other.hooks
        self._skills |= dict.fromkeys(other.skills)

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """The dependencies that the app provides, in registration order."""
        return tuple(self._dependencies.values())

    @property
    def tools(self) -> Mapping[str, Tool]:
        """All tools by name."""
        return MappingProxyType(self._tools)

    @property
    def origins(self) -> Mapping[str, str]:
        """The file and line where each tool was defined, for use in messages."""
        return MappingProxyType(self._origins)

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """All MCP servers."""
        return tuple(self._servers.values())

    @property
    def providers(self) -> Mapping[str, LLMProvider]:
        """All model providers by model prefix."""
        return MappingProxyType(self._providers)

    @property
    def skills(self) -> tuple[str, ...]:
        """All skill folders, in registration order."""
        return tuple(self._skills)

    @property
    def knowledge(self) -> Mapping[str, KnowledgeFolder]:
        """All knowledge base folders by knowledge base name."""
        return MappingProxyType(self._knowledge)

    @property
    def hooks(self) -> tuple[Registered, ...]:
        """All hooks and interceptors, in registration order."""
        return tuple(self._hooks)

    @property
    def extensions(self) -> Extensions:
        """The implementations of Loom's ports that the app registers."""
        return self._extensions

    @property
    def nodes(self) -> Mapping[str, NodeFunction]:
        """The functions of all nodes of code by name."""
        return MappingProxyType(self._nodes)

    @property
    def handlers(self) -> Mapping[str, TaskHandler]:
        """All Task handlers by name."""
        return MappingProxyType(self._handlers)


def caller() -> str:
    """Return the file and line of the user's code that called this function's caller."""
    frame = inspect.currentframe()
    outer = frame.f_back.f_back if frame is not None and frame.f_back is not None else None
    return "unknown" if outer is None else f"{outer.f_code.co_filename}:{outer.f_lineno}"


def refuse_twice(kind: str, name: str, first: object, origin: str) -> None:
    """Raise BadRequest if the name is already taken. `first` is the existing item, or its origin."""
    if first is not None:
        first = getattr(first, "origin", first)
        raise BadRequest(f"two {kind}s are called {name!r}: {first} and {origin}: rename one of them", field=kind)


def folder_of(given: str | Path, line: str, what: str) -> Path:
    """Return the absolute path of an existing folder.

    A relative path is resolved against the folder of the file that `line` (in the form `FILE:LINE`) refers to.

    Raises BadRequest if the folder doesn't exist.
    """
    path = (Path(line.rpartition(":")[0]).parent / Path(given).expanduser()).resolve()
    if not path.is_dir():
        raise BadRequest(f"there is no folder {path} with {what}", field=what)
    return path


def found(kind: str, name: str, among: Mapping[str, T]) -> T:
    """Return the item with this name. Raises BadRequest if there is no such item, and suggests a similar name."""
    if name in among:
        return among[name]
    hint = nearest(name, among, f"there are {', '.join(sorted(among)) or 'none'}")
    raise BadRequest(f"there is no {kind} {name!r}: {hint}", field=kind)
