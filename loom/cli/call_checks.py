"""Judge tool calls as a run on a worker in the current directory would, with the app's hooks and interceptors."""

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from loom.activities.adapters.mcp.servers import McpServers
from loom.activities.ports import Tool
from loom.activities.toolbox.hooks import gates_of, objection_to
from loom.activities.toolbox.interceptors import Intercepted, before_call
from loom.activities.toolbox.pipeline import Authorized, authorize
from loom.activities.toolbox.user_tools.dependencies import is_injected
from loom.app.registry import Registry
from loom.cli.worker_preview import load_registry, with_app
from loom.composition.load_settings import read_settings
from loom.composition.worker_catalog import agents_of
from loom.composition.worker_files import FilesOfWorker
from loom.domain.agents.definitions import spec_of, tools_of
from loom.domain.agents.hooks import Objection, Registered, functions_of, stricter_of
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest, LoomError, ToolValidationError
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import ToolSpec, Verdict
from loom.domain.core.tool_names import MADE, MCP
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.permissions.judge import BUILT_IN, Judgement, Mode, matching
from loom.domain.permissions.obeyed import NO_FILES, WorkerFiles
from loom.domain.permissions.rules import MAIN_FIELDS, Rule
from loom.domain.permissions.subjects import Place
from loom.domain.skills.catalog import COMPILED
from loom.domain.tools.mcp_servers import McpServer

_EMPTY: Final = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
_NO_RULES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """The verdict on a call, and the reasons for it."""

    made: Authorized
    tool: Tool | None
    name: str
    valid: object
    """The arguments in the form that the tool receives."""
    rules: Mapping[str, str]

    @property
    def judgement(self) -> Judgement:
        """The verdict and its origin."""
        return self.made.judgement

    @property
    def matched(self) -> Sequence[Rule]:
        """The rules that match the call."""
        made = self.made
        return matching(self.name, made.subjects, self.rules, arguments=made.arguments, place=made.place)

    @property
    def for_run(self) -> Sequence[str]:
        """The rules that an approval for the rest of the run would add."""
        return self.made.grants(self.tool, self.valid) if self.tool else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Checker:
    """A worker's tools, agents and hooks, and the workspace of the runs whose calls are judged."""

    registry: Registry
    tools: Mapping[str, Tool]
    servers: Sequence[str]
    workspace: str
    obeyed: Callable[[str], WorkerFiles] | None = None
    """Returns the files that a worker reads as code or instructions, for a workspace."""
    _specs: dict[tuple[str, frozenset[tuple[str, str]]], AgentSpec] = field(default_factory=dict)
    """The specs whose rules have been checked, with agents and additional rules as keys."""

    async def checked(
        self,
        call: ToolCall,
        *,
        agent: str = DEFAULT_AGENT,
        rules: Mapping[str, str] = _NO_RULES,
        mode: Mode | None = None,
    ) -> Checked:
        """Judge a call of this agent's run. `rules` override the agent's rules, and `mode` replaces the agent's mode.

        Raises BadRequest with the field `tool`, `agent`, `permissions` or `arguments` if one of these is invalid.
        """
        self._refuse_unknown(call.name)
        spec = self._spec(agent, rules)
        return await self.checked_as(call, replace(spec, mode=mode or spec.mode))

    async def checked_as(self, call: ToolCall, spec: AgentSpec, grants: Sequence[str] = ()) -> Checked:
        """Judge a call of a run that is pinned to this spec. `grants` are the rules that a person granted for the run.

        Raises BadRequest with the field `arguments` if the arguments are invalid.
        """
        tool = self.tools.get(call.name)
        try:
            asked = replace(call, arguments=_completed(tool, call.arguments)) if tool else call
            met, objection = await _intercepted(asked, spec.name, self.registry.hooks_for(spec.name))
            valid = tool.parse(met.call.arguments) if tool else call.arguments
            obeyed = self.obeyed(spec.workspace) if self.obeyed else NO_FILES
            made = authorize(met.call, tool, valid, spec, grants, obeyed=obeyed)
        except LoomError as error:
            raise BadRequest(error.message, field="arguments") from None
        judged = _with_interceptors(stricter_of(made.judgement, objection), met, asked)
        made = replace(made, judgement=_refused(spec, tool) or judged)
        return Checked(made=made, tool=tool, name=call.name, valid=valid, rules=spec.permissions)

    def _refuse_unknown(self, tool: str) -> None:
        """Raise BadRequest if a run could have no such tool. Tools of a server that isn't reached may exist."""
        server = tool.removeprefix(MCP).partition("__")[0] if tool.startswith(MCP) else None
        is_reached = any(name.startswith(f"{MCP}{server}__") for name in self.tools)
        may_exist = tool in BUILT_IN or tool.startswith((MADE, COMPILED)) or (server in self.servers and not is_reached)
        if tool not in self.tools and not may_exist:
            hint = nearest(tool, {**self.tools, **BUILT_IN}, "`loom tools list` shows all tools")
            raise BadRequest(f"there is no tool {tool!r}: {hint}", field="tool")

    def _spec(self, agent: str, rules: Mapping[str, str]) -> AgentSpec:
        key = (agent, frozenset(rules.items()))
        if key not in self._specs:
            self._specs[key] = self._built_spec(agent, rules)
        return self._specs[key]

    def _built_spec(self, name: str, rules: Mapping[str, str]) -> AgentSpec:
        """Return the agent's spec with the settings that affect verdicts. Raises BadRequest if a rule never matches."""
        agents = agents_of(self.registry)
        if name not in agents:
            hint = nearest(name, agents, "`loom agents list` shows all agents")
            raise BadRequest(f"there is no agent {name!r}: {hint}", field="agent")
        every = [tool.spec for tool in self.tools.values()]
        spec = spec_of(agents[name], AgentSpec(name=name, model=""))
        spec = replace(spec.with_permissions(rules), tools=tools_of(agents[name], every), workspace=self.workspace)
        self.refuse_dead(spec.permissions, workspace=spec.workspace)
        return spec

    def refuse_dead(self, rules: Mapping[str, str], *, workspace: str, others: Collection[ToolSpec] = ()) -> None:
        """Raise BadRequest if one of these rules never matches a call of the worker's tools, or of the `others`."""
        every = [*(tool.spec for tool in self.tools.values()), *others]
        place = Place(workspace=workspace, home=str(Path.home()))
        if dead := dead_rules(rules, every, servers=self.servers, place=place):
            raise BadRequest("\n  ".join(dead), field="permissions")


@asynccontextmanager
async def opened_checker(
    tools: Collection[str], agents: Collection[str], *, workspace: str, app: str | None = None
) -> AsyncIterator[Checker]:
    """Open a checker for calls to these tools by these agents.

    Connect to the MCP servers if one of the tools is an MCP tool, and open the app's dependencies if a hook of one of
    the agents needs them. Raises BadRequest if the workspace isn't a folder.
    """
    place = _folder(workspace)
    settings = with_app(read_settings(), app)
    registry = load_registry(settings)
    remote = any(name.startswith(MCP) for name in tools)
    theirs = await _mcp_tools(registry.mcp_servers, settings.home) if remote else {}
    hooks = [each for agent in agents for each in registry.hooks_for(agent)]
    needs_any = any(is_injected(function) for each in hooks for function in functions_of(each))
    async with registry.dependencies.opened() if needs_any else nullcontext():
        obeyed = FilesOfWorker(settings)
        obeyed.add(registry)
        yield Checker(
            obeyed=obeyed,
            registry=registry,
            tools={**registry.tools, **theirs},
            servers=[server.name for server in registry.mcp_servers],
            workspace=place,
        )


def _folder(name: str) -> str:
    place = Path(name).resolve()
    if not place.is_dir():
        raise BadRequest(f"--workspace: {name!r} is not a folder", field="--workspace")
    return str(place)


async def _mcp_tools(servers: Sequence[McpServer], home: Path) -> dict[str, Tool]:
    if not servers:
        return {}
    async with McpServers(servers, environment=os.environ, home=home) as connected:
        return dict(connected.tools)


def _refused(spec: AgentSpec, tool: Tool | None) -> Judgement | None:
    """Return a denial if the tool exists but this agent doesn't have it."""
    if tool is None or tool.spec.name in (each.name for each in spec.tools):
        return None
    reason = f"agent {spec.name} does not have the {tool.spec.name} tool"
    return Judgement(verdict=Verdict.DENY, rule="tools", reason=reason)


async def _intercepted(
    call: ToolCall, agent: str, registered: Sequence[Registered]
) -> tuple[Intercepted, Objection | None]:
    """Return the call after all interceptors have run, and the hooks' objection to the call, if any."""
    met = await before_call(call, call.id, agent, registered)
    return met, await objection_to(met.call, call.id, gates_of(registered))


def _with_interceptors(judged: Judgement, met: Intercepted, asked: ToolCall) -> Judgement:
    """Return the judgement with the effects of the interceptors applied."""
    by = f"interceptor {met.by}"
    if met.stopped:
        return replace(judged, verdict=Verdict.DENY, rule=by, reason=met.stopped)
    if met.answer is not None and judged.verdict is not Verdict.DENY:
        return replace(judged, verdict=Verdict.ALLOW, rule=by, reason="it answers instead of the tool")
    if met.call.arguments != asked.arguments:
        return replace(judged, reason=f"{judged.reason}; the {by} changes the arguments")
    return judged


def _completed(tool: Tool, given: JsonObject) -> JsonObject:
    """Return the arguments with a placeholder for each missing one. Rules rarely check these arguments."""
    try:
        tool.parse(given)
    except ToolValidationError as error:
        completed = {**_empty_arguments(tool.spec), **given}
        try:
            tool.parse(completed)
        except ToolValidationError:
            raise error from None
        return completed
    return given


def _empty_arguments(spec: ToolSpec) -> JsonObject:
    """Return a placeholder for each required argument. Omit the main argument, because rules check it."""
    known, main = spec.parameters.get("properties", {}), MAIN_FIELDS.get(spec.name)
    return {name: _empty(known.get(name)) for name in spec.parameters.get("required", ()) if name != main}


def _empty(schema: Any) -> Any:
    """Return a placeholder that matches a simple schema. For other schemas, return None, which no tool accepts."""
    match schema:
        case {"enum": [first, *_]}:
            return first
        case {"type": "string"}:
            return "x" * schema.get("minLength", 1)  # schemas of built-in tools leave out limits
        case {"type": str(kind)}:
            return _EMPTY.get(kind)
        case _:
            return None
