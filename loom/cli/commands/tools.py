"""The `tools` commands, which list a worker's tools and call a tool without a model."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import typer
from rich.table import Table

from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.activities.plan_calls import TurnContext
from loom.activities.ports import ToolContext
from loom.activities.toolbox.pipeline import execute
from loom.app.package_preview import described, installation
from loom.app.packages import enabled, installed
from loom.cli.arguments import App, Json, absolute, new_app, read_object
from loom.cli.output import console, counted, plain, print_json, print_notice, seconds
from loom.cli.worker_preview import named, running_worker, with_app
from loom.composition.build import parts_from
from loom.composition.load_settings import read_settings
from loom.composition.logs import configure_logs
from loom.composition.secret_mask import secret_mask
from loom.composition.settings import Settings
from loom.composition.worker_catalog import tool_facts
from loom.composition.worker_parts import WorkerParts
from loom.domain.agents.spec import AgentSpec
from loom.domain.agents.worker_catalog import WorkerCatalog, tool_summary
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import ToolResult, Verdict, failed
from loom.exit_codes import COMPLETED, FAILED

LOCAL_RUN: Final = "local"
"""The run id that is used for calls from the command line."""


app = new_app("tools", "List a worker's tools, or call one without a model.")


@app.command("list")
def list_tools(
    everything: Annotated[
        bool,
        typer.Option("--all", help="Include installed packages that are not enabled; Loom reads them in the sandbox."),
    ] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """List the running worker's tools, and show where they come from.

    If you name an app, or if no worker is running, list the tools that a worker started in this folder would have.
    """
    found = asyncio.run(_list(app, running_worker(app, "tools"), everything=everything))
    if as_json:
        print_json(found)
        return
    _print_tools(found["tools"])
    for why in found.get("unavailable", {}).values():
        print_notice(f"{plain(why)}; the list shows its last known tools")
    for package in found.get("packages", ()):
        _print_package(package)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tool.")],
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show a tool's description, arguments and settings.

    The settings include its effect, permission and limits. If you name an app, or if no worker is running, this is the
    tool that a worker started here would have.
    """
    running = running_worker(app, "tools")
    tools = asyncio.run(_tools(_settings(app))) if running is None else running.tools
    by_name = {tool["name"]: tool for tool in tools}
    facts = named(name, by_name, "tool", otherwise="`loom tools list` shows all tools")
    if as_json:
        print_json(facts)
        return
    typer.echo(plain(f"{facts['name']}  ({facts['origin']})\n\n{facts['description']}\n"))
    for key in ("effect", "permission", "scope", "parallel", "timeout", "queue", "ephemeral", "missing"):
        if facts[key]:
            typer.echo(plain(f"{key:<11} {facts[key]}"))
    typer.echo(plain(json.dumps(facts["parameters"], indent=2, ensure_ascii=False)))


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments as a JSON object.")] = "{}",
    workspace: Annotated[str | None, typer.Option(help="Folder to work in; default: LOOM_WORKSPACE.")] = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Call a tool on this machine, without a model.

    The call passes through all six stages and the sandbox. Running this command counts as your approval. Exit codes:
    0 success, possibly with a warning; 1 the result is an error; 2 invalid usage.
    """
    settings = _settings(app)
    given = read_object(arguments, "JSON")
    place = Path(absolute(workspace)) if workspace else settings.workspace
    if not place.is_dir():
        raise BadRequest(f"--workspace: {str(place)!r} is not a folder; create it", field="--workspace")
    named, result = asyncio.run(_call(settings, tool, given, place.resolve()))
    if as_json:
        print_json(_result_view(named, result))
    else:
        typer.echo(plain(result.content))
        for part in result.parts:
            typer.echo(f"({part.type} {part.name or part.media_type}, {counted(part.bytes, 'byte')})")
        print_notice(f"{tool}: {result.error_type or result.status}, {seconds(sum(result.stage_ms) / 1000)}")
    raise typer.Exit(FAILED if result.status == "error" else COMPLETED)


def _settings(app: str | None) -> Settings:
    """Return the settings without the stores, so that no server is needed."""
    return with_app(read_settings().model_copy(update={"database_url": None, "redis_url": None}), app)


@asynccontextmanager
async def _parts(settings: Settings, *, opens_dependencies: bool = False) -> AsyncIterator[WorkerParts]:
    level = "ERROR" if settings.log_level == "INFO" else settings.log_level
    configure_logs(level, settings.log_format, secret_mask(settings).redact)
    async with parts_from(settings, opens_dependencies=opens_dependencies) as parts:
        yield parts


async def _list(app: str | None, running: WorkerCatalog | None, *, everything: bool) -> dict[str, Any]:
    settings = _settings(app)
    if running is not None:
        found: dict[str, Any] = {"tools": [tool_summary(tool) for tool in running.tools]}
    else:
        async with _parts(settings) as parts:
            found = {"tools": [tool_summary(tool) for tool in _facts(parts)]}
            away = {name: entry["hint"] for name, entry in parts.servers.report().items() if not entry["ok"]}
        if away:
            found["unavailable"] = away
    return found | {"packages": await _packages(settings)} if everything else found


async def _tools(settings: Settings) -> list[JsonObject]:
    async with _parts(settings) as parts:
        return _facts(parts)


def _facts(parts: WorkerParts) -> list[JsonObject]:
    return [tool_facts(tool, parts.registry.origins) for _, tool in sorted(parts.tools.items())]


async def _packages(settings: Settings) -> list[dict[str, Any]]:
    """Return all installed packages. If a package isn't enabled, its tools are read in the sandbox."""
    packages = installed()
    used = {package.name for package in enabled(settings.packages, packages)}
    opened = (*installation(), *settings.sandbox_readable)
    sandbox, why_not = find_sandbox(
        settings.sandbox, settings.private_paths, settings.sandbox_limits, opened, settings.sandbox_environment
    )
    found = []
    for name, package in packages.items():
        facts: dict[str, Any] = {
            "name": package.name,
            "version": package.version,
            "summary": package.summary,
            "author": package.author,
            "enabled": package.name in used,
            "skills": [entry.value for entry in package.skills],
        }
        if not facts["enabled"]:
            facts |= await _preview(
                name, sandbox if settings.sandbox == "on" else None, why_not or "the sandbox is off"
            )
        found.append(facts)
    return found


async def _preview(name: str, sandbox: Any, why_not: str) -> dict[str, Any]:
    if sandbox is None:
        return {"tools": None, "note": f"its tools cannot be listed: {why_not}"}
    try:
        return {"tools": await described(name, sandbox)}
    except BadRequest as error:
        return {"tools": None, "note": error.message}


async def _call(settings: Settings, name: str, given: JsonObject, place: Path) -> tuple[ToolCall, ToolResult]:
    made = ToolCall(id="call-1", name=name, arguments=given)
    async with _parts(settings, opens_dependencies=True) as parts:
        specs = tuple(tool.spec for tool in parts.tools.values())
        spec = AgentSpec(name="loom tools call", model="", tools=specs, workspace=str(place))
        turn = TurnContext(spec=spec, grants=(), origin=Origin(run_id=LOCAL_RUN), turn=1)
        (planned,) = await parts.planner.plans([made], turn)
        if planned.verdict is Verdict.DENY and not planned.error:
            return made, failed(planned.reason, "permission")
        # Running the command counts as the approval. Invalid arguments are reported when the stages run.
        context = ToolContext(
            workspace=place,
            run_id=LOCAL_RUN,
            call_id=made.id,
            idempotency_key=uuid4().hex,
            timeout=planned.timeout,
            progress=_print_progress,
        )
        result = await execute(
            made, box=parts.tools, context=context, sanitizer=parts.sanitizer, is_cancelled=lambda: False
        )
    return made, result


def _print_progress(text: str) -> None:
    sys.stderr.write(plain(text).encode("utf-8", "replace").decode())
    sys.stderr.flush()


def _result_view(made: ToolCall, result: ToolResult) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "tool_call_id": made.id,
        "content": result.content,
        "status": result.status,
        "metadata": result.metadata,
    }
    if result.parts:
        keys = ("type", "media_type", "name", "url", "data")
        facts["parts"] = [{key: getattr(part, key) for key in keys if getattr(part, key)} for part in result.parts]
    return facts


def _print_tools(tools: list[dict[str, Any]]) -> None:
    table = Table("tool", "from", "effect", "permission", "what it does", box=None, padding=(0, 2, 0, 0))
    for tool in tools:
        about = f"(not available: {tool['missing']})" if tool["missing"] else tool["description"]
        origin = str(tool["origin"]).partition(": ")[0]
        table.add_row(tool["name"], plain(origin), tool["effect"], tool["permission"], plain(about))
    console(wide=True).print(table)


def _print_package(package: dict[str, Any]) -> None:
    state = "enabled" if package["enabled"] else "not enabled"
    lines = [f"\n{package['name']} {package['version']}  {state}  {package['summary']}  {package['author']}".rstrip()]
    lines += [
        f"  {tool['name']}: {tool['effect']}, permission {tool['permission']}. {tool['description']}"
        for tool in package.get("tools") or ()
    ]
    lines += [f"  skills: {value}" for value in package["skills"]]
    if package.get("note"):
        lines.append(f"  {package['note']}")
    console(wide=True).print(plain("\n".join(lines)))
