"""permissions check: what hooks and rules say of one tool call, by the very functions that a run asks."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loom.cli.arguments import absolute, read_object, read_permissions
from loom.cli.output import plain, print_json, visible
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.core.errors import BadRequest, LoomError, ToolValidationError
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_names import MCP
from loom.domain.permissions.judge import Mode

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from pathlib import Path

    from loom.activities.ports import Tool, ToolSet
    from loom.activities.toolbox.interceptors import Intercepted
    from loom.activities.toolbox.user_tools.dependencies import Dependencies
    from loom.app.registry import Registry
    from loom.domain.agents.hooks import Objection, Registered
    from loom.domain.agents.spec import AgentSpec
    from loom.domain.core.messages import JsonObject
    from loom.domain.core.tool_calls import ToolSpec
    from loom.domain.permissions.judge import Judgement
    from loom.domain.permissions.rules import Rule
    from loom.domain.tools.mcp_servers import McpServer


_EMPTY: Final = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What came of a check."""

    judgement: "Judgement"
    matched: "Sequence[Rule]"
    for_run: Sequence[str]
    """What an approval for the run would add."""


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(name="permissions", help="Permission rules.", no_args_is_help=True)
    group.callback()(_group)
    group.command()(check)
    app.add_typer(group)


def _group() -> None:
    """Ask what rules mean before a run has to."""


def check(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name, such as bash.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments as a JSON object.")],
    *,
    agent: Annotated[str, typer.Option(help="Whose call it is: its tools, rules, mode and hooks.")] = DEFAULT_AGENT,
    permissions: Annotated[
        str,
        typer.Option(metavar="FILE|JSON", help="Rules laid over the agent's: a JSON object, or a JSON or TOML file."),
    ] = "{}",
    mode: Annotated[Mode | None, typer.Option(help="The run's mode; left out: the agent's.")] = None,
    workspace: Annotated[str, typer.Option(metavar="DIR", help="The run's workspace.")] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Say whether a call would run, be asked about or be denied, and by which rule. The tool is not run.

    Interceptors and hooks of your app are asked as in a run.
    Arguments that the tool's own patterns are not for, such as the content of a file, may be left out.
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
    """Judge the call as a run in this workspace would; raises BadRequest for rules or arguments that cannot be."""
    from pathlib import Path  # noqa: PLC0415

    from loom.activities.toolbox.pipeline import authorize  # noqa: PLC0415
    from loom.domain.agents.hooks import stricter_of  # noqa: PLC0415
    from loom.domain.permissions.judge import matching  # noqa: PLC0415

    box, servers, registry = worker_tools(call.name)
    place = str(Path(workspace).resolve())
    if not Path(place).is_dir():
        raise BadRequest(f"--workspace: {workspace!r} is not a folder", field="--workspace")
    spec = _spec(agent, registry, box)
    spec = replace(spec.with_permissions(rules), mode=mode or spec.mode, workspace=place)
    _refuse_dead(spec, box, servers)
    tool = box.get(call.name)
    try:
        asked = replace(call, arguments=_whole(tool, call.arguments)) if tool else call
        with redirect_stdout(sys.stderr):  # what a user's code prints is no answer of ours
            met, objection = asyncio.run(_met(asked, agent, registry.hooks_for(agent), registry.dependencies))
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


def _spec(name: str, registry: "Registry", box: "ToolSet") -> "AgentSpec":
    """The agent with its tools and rules, as far as a call of it is judged by them."""
    from loom.domain.agents.definitions import AgentDefinition, spec_of, tools_of  # noqa: PLC0415
    from loom.domain.agents.spec import AgentSpec  # noqa: PLC0415
    from loom.domain.core.suggestions import nearest  # noqa: PLC0415

    agents = {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **registry.agents}
    if name not in agents:
        hint = nearest(name, agents, "`loom agents list` shows them all")
        raise BadRequest(f"--agent: there is no agent {name!r}: {hint}", field="--agent")
    tools = tools_of(agents[name], (tool.spec for tool in box.values()))
    return replace(spec_of(agents[name], AgentSpec(name=name, model="")), tools=tools)


def _refused(spec: "AgentSpec", tool: "Tool | None") -> "Judgement | None":
    """What a run says of a tool that others have and this agent has not."""
    from loom.domain.core.tool_calls import Verdict  # noqa: PLC0415
    from loom.domain.permissions.judge import Judgement  # noqa: PLC0415

    if tool is None or tool.spec.name in (each.name for each in spec.tools):
        return None
    reason = f"the agent {spec.name} does not have the tool {tool.spec.name}"
    return Judgement(verdict=Verdict.DENY, rule="tools", reason=reason)


async def _met(
    call: ToolCall, agent: str, registered: "Sequence[Registered]", dependencies: "Dependencies"
) -> "tuple[Intercepted, Objection | None]":
    """What interceptors make of the call, and what hooks have against that."""
    from loom.activities.toolbox.hooks import gates_of, objection_to  # noqa: PLC0415
    from loom.activities.toolbox.interceptors import before_call  # noqa: PLC0415
    from loom.activities.toolbox.user_tools.dependencies import is_injected  # noqa: PLC0415
    from loom.domain.agents.hooks import functions_of  # noqa: PLC0415

    needs_any = any(is_injected(function) for each in registered for function in functions_of(each))
    async with dependencies.opened() if needs_any else nullcontext():
        met = await before_call(call, call.id, agent, registered)
        return met, await objection_to(met.call, call.id, gates_of(registered))


def _with_interceptors(judged: "Judgement", met: "Intercepted", asked: ToolCall) -> "Judgement":
    """The judgement, and what interceptors had to do with it."""
    from loom.domain.core.tool_calls import Verdict  # noqa: PLC0415

    by = f"interceptor {met.by}"
    if met.stopped:
        return replace(judged, verdict=Verdict.DENY, rule=by, reason=met.stopped)
    if met.answer is not None and judged.verdict is not Verdict.DENY:
        return replace(judged, verdict=Verdict.ALLOW, rule=by, reason="it answers in the place of the tool")
    if met.call.arguments != asked.arguments:
        return replace(judged, reason=f"{judged.reason}; the {by} has changed the arguments")
    return judged


def _whole(tool: "Tool", given: "JsonObject") -> "JsonObject":
    """The arguments, with what hardly any rule is about as if it were empty where it is not there."""
    try:
        tool.parse(given)
    except ToolValidationError as error:
        whole = {**_empty_ones(tool.spec), **given}
        try:
            tool.parse(whole)
        except ToolValidationError:
            raise error from None
        return whole
    return given


def _empty_ones(spec: "ToolSpec") -> "JsonObject":
    """A value for each argument that is required, but for the one that decides."""
    from loom.domain.permissions.rules import MAIN_FIELDS  # noqa: PLC0415

    known, main = spec.parameters.get("properties", {}), MAIN_FIELDS.get(spec.name)
    return {name: _empty(known.get(name)) for name in spec.parameters.get("required", ()) if name != main}


def _empty(schema: Any) -> Any:
    """The least that fits a simple schema; None for others, which no tool takes."""
    match schema:
        case {"enum": [first, *_]}:
            return first
        case {"type": "string"}:
            return "x" * schema.get("minLength", 0)
        case {"type": str(kind)}:
            return _EMPTY.get(kind)
        case _:
            return None


def _refuse_dead(spec: "AgentSpec", box: "ToolSet", servers: Sequence[str]) -> None:
    from pathlib import Path  # noqa: PLC0415

    from loom.domain.permissions.dead_rules import dead_rules  # noqa: PLC0415
    from loom.domain.permissions.subjects import Place  # noqa: PLC0415

    place = Place(workspace=spec.workspace, home=str(Path.home()))
    if dead := dead_rules(spec.permissions, [tool.spec for tool in box.values()], servers=servers, place=place):
        raise BadRequest("--permissions: " + plain("\n  ".join(dead)), field="--permissions")


def worker_tools(name: str) -> "tuple[ToolSet, list[str], Registry]":
    """A worker's tools with these settings, its MCP servers, dialled for tools of theirs, and its whole registry."""
    from loom.activities.toolbox.built_in.made_tools import MadeTools  # noqa: PLC0415
    from loom.composition.load_settings import read_settings  # noqa: PLC0415
    from loom.composition.tool_registry import registry_from  # noqa: PLC0415

    settings = read_settings()
    registry = registry_from(settings, MadeTools(sandbox=None))
    servers = [server.name for server in registry.mcp_servers]
    if not name.startswith(MCP) or not servers:
        return registry.tools, servers, registry
    tools = {**registry.tools, **asyncio.run(_of_servers(registry.mcp_servers, settings.home))}
    return tools, servers, registry


async def _of_servers(servers: "Sequence[McpServer]", home: "Path") -> "dict[str, Tool]":
    from loom.activities.adapters.mcp.servers import McpServers  # noqa: PLC0415

    async with McpServers(servers, environment=os.environ, home=home) as connected:
        return dict(connected.tools)
