"""The `permissions check` command. It applies hooks and rules to a tool call, with the functions that runs use."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from loom.activities.adapters.mcp.servers import McpServers
from loom.activities.ports import Tool, ToolSet
from loom.activities.toolbox.hooks import gates_of, objection_to
from loom.activities.toolbox.interceptors import Intercepted, before_call
from loom.activities.toolbox.pipeline import authorize
from loom.activities.toolbox.user_tools.dependencies import Dependencies, is_injected
from loom.app.registry import Registry
from loom.cli.arguments import Json, absolute, new_app, read_object, read_permissions
from loom.cli.output import plain, print_json, visible
from loom.cli.worker_preview import agents_of, load_registry
from loom.composition.load_settings import read_settings
from loom.domain.agents.definitions import spec_of, tools_of
from loom.domain.agents.hooks import Objection, Registered, functions_of, stricter_of
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest, LoomError, ToolValidationError
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import ToolSpec, Verdict
from loom.domain.core.tool_names import MCP
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.permissions.judge import Judgement, Mode, matching
from loom.domain.permissions.rules import MAIN_FIELDS, Rule
from loom.domain.permissions.subjects import Place
from loom.domain.tools.mcp_servers import McpServer

_EMPTY: Final = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """The verdict on a call and the rules that led to it."""

    judgement: Judgement
    matched: Sequence[Rule]
    for_run: Sequence[str]
    """The rules that an approval for the rest of the run would add."""


app = new_app("permissions", "Check permission rules against a tool call.")


@app.command()
def check(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name, such as bash.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments as a JSON object.")],
    *,
    agent: Annotated[str, typer.Option(help="The agent whose tools, rules, mode and hooks apply.")] = DEFAULT_AGENT,
    permissions: Annotated[
        str,
        typer.Option(
            metavar="FILE|JSON", help="Rules that override the agent's: a JSON object, or a JSON or TOML file."
        ),
    ] = "{}",
    mode: Annotated[Mode | None, typer.Option(help="The run's mode; default: the agent's.")] = None,
    workspace: Annotated[str, typer.Option(metavar="DIR", help="The run's workspace.")] = ".",
    as_json: Json = False,
) -> None:
    """Show whether a call would be allowed, need approval or be denied, and which rule decides.

    This command doesn't call the tool, but it calls your app's interceptors and hooks as a run does. You can omit
    arguments that rules don't check, such as a file's content.
    """
    rules = read_permissions(permissions)
    call = ToolCall(id="check", name=tool, arguments=read_object(arguments, "JSON"))
    checked = checked_call(call, rules, mode, absolute(workspace), agent)
    judged = checked.judgement
    if as_json:
        print_json({"verdict": judged.verdict, "rule": judged.rule, "reason": judged.reason})
        return
    typer.echo(visible(f"{judged.verdict}: {judged.rule}"))
    typer.echo(visible(f"  {judged.reason}"))
    for rule in checked.matched:
        typer.echo(visible(f"  matches {rule.text}: {rule.verdict}"))
    for grant in checked.for_run:
        typer.echo(visible(f"  for the run: {grant}"))


def checked_call(
    call: ToolCall, rules: dict[str, str], mode: Mode | None, workspace: str, agent: str = DEFAULT_AGENT
) -> Checked:
    """Judge the call as a run in this workspace would. Raises BadRequest if rules or arguments are invalid."""

    box, servers, registry = worker_tools(call.name)
    place = str(Path(workspace).resolve())
    if not Path(place).is_dir():
        raise BadRequest(f"--workspace: {workspace!r} is not a folder", field="--workspace")
    spec = _spec(agent, registry, box)
    spec = replace(spec.with_permissions(rules), mode=mode or spec.mode, workspace=place)
    _refuse_dead(spec, box, servers)
    tool = box.get(call.name)
    try:
        asked = replace(call, arguments=_completed(tool, call.arguments)) if tool else call
        with redirect_stdout(sys.stderr):  # the app's own output must not mix with the command's output
            met, objection = asyncio.run(_intercepted(asked, agent, registry.hooks_for(agent), registry.dependencies))
        valid = tool.parse(met.call.arguments) if tool else call.arguments
        made = authorize(met.call, tool, valid, spec)
    except LoomError as error:
        raise BadRequest(f"JSON: {error.message}", field="JSON") from None
    judged = _with_interceptors(stricter_of(made.judgement, objection), met, asked)
    made = replace(made, judgement=_refused(spec, tool) or judged)
    return Checked(
        judgement=made.judgement,
        matched=matching(call.name, made.subjects, spec.permissions, arguments=made.arguments, place=made.place),
        for_run=made.grants(tool, valid) if tool else (),
    )


def _spec(name: str, registry: Registry, box: ToolSet) -> AgentSpec:
    """Return the agent's spec with the tools and rules that affect the verdict on a call."""

    agents = agents_of(registry)
    if name not in agents:
        hint = nearest(name, agents, "`loom agents list` shows all agents")
        raise BadRequest(f"--agent: there is no agent {name!r}: {hint}", field="--agent")
    tools = tools_of(agents[name], (tool.spec for tool in box.values()))
    return replace(spec_of(agents[name], AgentSpec(name=name, model="")), tools=tools)


def _refused(spec: AgentSpec, tool: Tool | None) -> Judgement | None:
    """Return a denial if the tool exists but this agent doesn't have it."""

    if tool is None or tool.spec.name in (each.name for each in spec.tools):
        return None
    reason = f"agent {spec.name} does not have the {tool.spec.name} tool"
    return Judgement(verdict=Verdict.DENY, rule="tools", reason=reason)


async def _intercepted(
    call: ToolCall, agent: str, registered: Sequence[Registered], dependencies: Dependencies
) -> tuple[Intercepted, Objection | None]:
    """Return the call after all interceptors have run, and the hooks' objection to the call, if any."""

    needs_any = any(is_injected(function) for each in registered for function in functions_of(each))
    async with dependencies.opened() if needs_any else nullcontext():
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
    """Return the arguments with an empty value for each missing one. Rules rarely check these arguments."""
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
    """Return an empty value for each required argument. Omit the main argument, because rules check it."""

    known, main = spec.parameters.get("properties", {}), MAIN_FIELDS.get(spec.name)
    return {name: _empty(known.get(name)) for name in spec.parameters.get("required", ()) if name != main}


def _empty(schema: Any) -> Any:
    """Return an empty value that matches a simple schema. For other schemas, return None, which no tool accepts."""
    match schema:
        case {"enum": [first, *_]}:
            return first
        case {"type": "string"}:
            return "x" * schema.get("minLength", 0)
        case {"type": str(kind)}:
            return _EMPTY.get(kind)
        case _:
            return None


def _refuse_dead(spec: AgentSpec, box: ToolSet, servers: Sequence[str]) -> None:

    place = Place(workspace=spec.workspace, home=str(Path.home()))
    if dead := dead_rules(spec.permissions, [tool.spec for tool in box.values()], servers=servers, place=place):
        raise BadRequest("--permissions: " + plain("\n  ".join(dead)), field="--permissions")


def worker_tools(name: str) -> tuple[ToolSet, list[str], Registry]:
    """Return a worker's tools, MCP server names and registry. If `name` is an MCP tool, connect to the servers."""

    settings = read_settings()
    registry = load_registry(settings)
    servers = [server.name for server in registry.mcp_servers]
    if not name.startswith(MCP) or not servers:
        return registry.tools, servers, registry
    tools = {**registry.tools, **asyncio.run(_mcp_tools(registry.mcp_servers, settings.home))}
    return tools, servers, registry


async def _mcp_tools(servers: Sequence[McpServer], home: Path) -> dict[str, Tool]:

    async with McpServers(servers, environment=os.environ, home=home) as connected:
        return dict(connected.tools)
