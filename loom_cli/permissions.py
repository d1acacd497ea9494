"""permissions check: what the rules say of one tool call, by the very function that a run asks."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loom_cli.arguments import absolute, read_object, read_permissions
from loom_cli.output import plain, print_json, visible
from loom_domain.errors import BadRequest, LoomError, ToolValidationError
from loom_domain.messages import ToolCall
from loom_domain.permissions import Mode
from loom_domain.tool_names import MCP

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from pathlib import Path

    from activities.ports import Tool, ToolBox
    from loom_domain.mcp import McpServer
    from loom_domain.messages import JsonObject
    from loom_domain.permissions import Judgement
    from loom_domain.rules import Rule
    from loom_domain.tool_calls import ToolSpec


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
    permissions: Annotated[
        str, typer.Option(metavar="FILE|JSON", help="Rules: a JSON object, or a JSON or TOML file.")
    ] = "{}",
    mode: Annotated[Mode, typer.Option(help="The run's mode.")] = Mode.DEFAULT,
    workspace: Annotated[str, typer.Option(metavar="DIR", help="The run's workspace.")] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Say whether a call would run, be asked about or be denied, and by which rule. Nothing is run.

    Arguments that the tool's own patterns are not for, such as the content of a file, may be left out.
    """
    rules = read_permissions(permissions)
    call = ToolCall(id="check", name=tool, arguments=read_object(arguments, "JSON"))
    checked = checked_call(call, rules, mode, absolute(workspace))
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


def checked_call(call: ToolCall, rules: dict[str, str], mode: Mode, workspace: str) -> Checked:
    """Judge the call as a run in this workspace would; raises BadRequest for rules or arguments that cannot be."""
    from pathlib import Path  # noqa: PLC0415

    from activities.toolbox.authorization import authorize  # noqa: PLC0415
    from loom_domain.agents import AgentSpec  # noqa: PLC0415
    from loom_domain.permissions import matching  # noqa: PLC0415

    box, servers = worker_tools(call.name)
    place = str(Path(workspace).resolve())
    if not Path(place).is_dir():
        raise BadRequest(f"--workspace: {workspace!r} is not a folder", field="--workspace")
    _refuse_dead(rules, box, servers, place)
    tool = box.get(call.name)
    spec = AgentSpec(
        name="check",
        model="",
        tools=tuple(each.spec for each in box.values()),
        permissions=rules,
        mode=mode,
        workspace=place,
    )
    try:
        valid = _parsed(tool, call.arguments) if tool else call.arguments
        made = authorize(call, tool, valid, spec)
    except LoomError as error:
        raise BadRequest(f"JSON: {error.message}", field="JSON") from None
    return Checked(
        judgement=made.judgement,
        matched=matching(call.name, made.subjects, rules, arguments=made.arguments, place=made.place),
        for_run=made.grants(tool, valid) if tool else (),
    )


def _parsed(tool: "Tool", given: "JsonObject") -> object:
    """The arguments as the tool takes them, where what hardly any rule is about is not there as if it were empty."""
    try:
        return tool.parse(given)
    except ToolValidationError as error:
        try:
            return tool.parse({**_empty_ones(tool.spec), **given})
        except ToolValidationError:
            raise error from None


def _empty_ones(spec: "ToolSpec") -> "JsonObject":
    """A value for each argument that is required, but for the one that decides."""
    from loom_domain.rules import MAIN_FIELDS  # noqa: PLC0415

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


def _refuse_dead(rules: dict[str, str], box: "ToolBox", servers: Sequence[str], workspace: str) -> None:
    from pathlib import Path  # noqa: PLC0415

    from loom_domain.dead_rules import dead_rules  # noqa: PLC0415
    from loom_domain.subjects import Place  # noqa: PLC0415

    place = Place(workspace=workspace, home=str(Path.home()))
    if dead := dead_rules(rules, [tool.spec for tool in box.values()], servers=servers, place=place):
        raise BadRequest("--permissions: " + plain("\n  ".join(dead)), field="--permissions")


def worker_tools(name: str) -> "tuple[ToolBox, list[str]]":
    """The tools that a worker with these settings has, and its MCP servers; those are dialled for tools of theirs."""
    from activities.toolbox.made_tools import MadeTools  # noqa: PLC0415
    from deploy.settings import read_settings  # noqa: PLC0415
    from loom_parts.tools import registry_from  # noqa: PLC0415

    settings = read_settings()
    registry = registry_from(settings, MadeTools(sandbox=None))
    servers = [server.name for server in registry.mcp_servers]
    if not name.startswith(MCP) or not servers:
        return registry.tools, servers
    return {**registry.tools, **asyncio.run(_of_servers(registry.mcp_servers, settings.home))}, servers


async def _of_servers(servers: "Sequence[McpServer]", home: "Path") -> "dict[str, Tool]":
    from activities.adapters.mcp.mcp_servers import McpServers  # noqa: PLC0415

    async with McpServers(servers, environment=os.environ, home=home) as connected:
        return dict(connected.tools)
