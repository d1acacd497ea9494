"""crew: several agents on one task: run them, and see which crews a worker here would have."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loom.cli.arguments import absolute, read_object, read_permissions, read_schema
from loom.cli.commands.runs import BUDGET, given, launch, unattended
from loom.cli.commands.validate import validate as validate_files
from loom.cli.output import console, counted, one_line, plain, print_json, visible
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.domain.core.messages import JsonObject
    from loom.domain.crews.crew import Crew

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
App = Annotated[str | None, typer.Option("--app", help="package.module:app, in place of LOOM_APP.")]
Which = Annotated[str, typer.Argument(metavar="FILE|NAME", help="A crew file, or a crew that the worker has.")]

ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")
COLUMN: Final = 14


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Crews: several agents on one task.", no_args_is_help=True)
    for command in (run, show, validate):
        group.command()(command)
    group.command("list")(list_crews)
    app.add_typer(group, name="crew")


def run(
    crew: Which,
    task: Annotated[str, typer.Argument(metavar="TASK", help="What to do; `-` reads it from standard input.")],
    *,
    model: Annotated[
        str | None, typer.Option(help="For members that name none: openai:NAME, anthropic:NAME or demo.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="The conversation that this run belongs to.")] = None,
    workspace: Annotated[str | None, typer.Option(metavar="DIR", help="The folder that all members work in.")] = None,
    permissions: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Rules above those of every member.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="default, read-only, accept-edits or bypass.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Steps after which the crew ends.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="JSON", help=BUDGET)] = None,
    output_schema: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="JSON Schema that the answer has to fit.")
    ] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="Kept with the run.")] = None,
    run_id: Annotated[str | None, typer.Option("--id", metavar="RUN", help="The new run's id.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start it, print its id and leave.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every ask of the crew.")] = False,
    as_json: Json = False,
) -> None:
    """Start a crew and watch it to its end; all other commands take its run id like any run's.

    Exit codes are those of `loom run`.
    """
    from loom.workflows.validation import read_crew_request  # noqa: PLC0415

    request = given(
        model=model,
        session_id=session,
        workspace=absolute(workspace) if workspace is not None else None,
        permissions=read_permissions(permissions) if permissions is not None else None,
        mode=mode,
        max_turns=max_turns,
        budget=read_object(budget, "--budget") if budget is not None else None,
        output_schema=read_schema(output_schema) if output_schema is not None else None,
        metadata=read_object(metadata, "--metadata") if metadata is not None else None,
    )
    asked = _asked(crew)
    words = sys.stdin.read() if task == "-" else task
    if yes and detach:
        request = unattended(request)
    read_crew_request({"crew": asked, "task": words, **request})
    launch(
        lambda loom: loom.start_crew(asked, words, run_id=run_id, **request), detach=detach, yes=yes, as_json=as_json
    )


def list_crews(app: App = None, as_json: Json = False) -> None:
    """List the crews that a worker with these settings has, and where they were defined."""
    from loom.app.crew_files import FOLDER  # noqa: PLC0415
    from loom.composition.load_settings import load_settings  # noqa: PLC0415

    found = [
        {
            "name": crew.name,
            "description": crew.description,
            "mode": crew.mode.value,
            "members": [member.name for member in crew.members],
            "origin": crew.origin,
        }
        for crew in _known(app).values()
    ]
    if as_json:
        print_json(found)
        return
    if not found:
        folder = load_settings().home / FOLDER
        typer.echo(f"no crews; put one into {folder}/NAME.yaml, or make one with LoomApp.create_crew")
        return
    from rich.table import Table  # noqa: PLC0415

    table = Table("crew", "mode", "members", "what it is for", "from", box=None, padding=(0, 2, 0, 0))
    for each in found:
        cells = (each["name"], each["mode"], ", ".join(each["members"]), one_line(str(each["description"]), 60))
        table.add_row(*(plain(str(cell)) for cell in (*cells, each["origin"])))
    console(wide=True).print(table)


def show(crew: Which, app: App = None, as_json: Json = False) -> None:
    """Show a crew: how its members share a task, what each is good at, and what its failure means."""
    from dataclasses import asdict  # noqa: PLC0415

    found = _file(crew) or _one(crew, app)
    if as_json:
        print_json(asdict(found))
        return
    for line in _lines(found):
        typer.echo(visible(line))


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Crew files.")],
    app: App = None,
    as_json: Json = False,
) -> None:
    """Check crew files as a worker here would. Exit code 2: something is wrong."""
    validate_files(files, schema=None, app=app, as_json=as_json)


def _asked(crew: str) -> "str | JsonObject":
    """What to ask the worker for: a file goes along with the request, so that no worker has to have it."""
    found = _file(crew)
    if found is None:
        return crew
    from loom.app.document_files import read_document  # noqa: PLC0415

    fields = {name: value for name, value in read_document(Path(crew)).items() if name != "kind"}
    return {**fields, "name": found.name}


def _file(crew: str) -> "Crew | None":
    if not crew.lower().endswith(ENDINGS):
        return None
    from loom.app.crew_files import read_crew_file  # noqa: PLC0415

    return read_crew_file(Path(crew))


def _known(app: str | None) -> "dict[str, Crew]":
    from loom.activities.toolbox.built_in.made_tools import MadeTools  # noqa: PLC0415
    from loom.composition.load_settings import load_settings  # noqa: PLC0415
    from loom.composition.tool_registry import registry_from  # noqa: PLC0415

    settings = load_settings()
    settings = settings.model_copy(update={"app": app}) if app else settings
    return dict(registry_from(settings, MadeTools(sandbox=None)).crews)


def _one(name: str, app: str | None) -> "Crew":

    known = _known(app)
    if name not in known:
        hint = nearest(name, known, "`loom crew list` shows them all; a file ends in .yaml")
        raise BadRequest(f"there is no crew {name!r}: {hint}", field="crew")
    return known[name]


def _lines(crew: "Crew") -> list[str]:
    lines = [f"{crew.name}  ({crew.origin})", *([f"  {crew.description}"] if crew.description else [])]
    lines.append(f"{'mode':<{COLUMN}}{crew.mode.value}{_how(crew)}")
    for member in crew.members:
        agent = "" if member.agent == member.name else f" [{member.agent}]"
        lines.append(f"{'member':<{COLUMN}}{member.name}{agent}: {one_line(member.about)}")
        after = f", then {member.substitute}" if member.substitute else ""
        end = "the crew goes on without" if crew.carries_on_without(member) else "the crew stops"
        lines.append(f"{'':<{COLUMN}}  on failure: {counted(member.retries + 1, 'attempt')}{after}, then {end}")
    return lines


def _how(crew: "Crew") -> str:
    told: dict[str, Any] = {
        "coordinated": f", led by {crew.coordinator.agent}, {counted(crew.coordinator.max_rounds, 'round')} at most",
        "routed": f", by {crew.router.by}" + (f", else {crew.router.fallback}" if crew.router.fallback else ""),
        "parallel": f", answers by {crew.aggregate.by}",
        "tree": f", scored by {crew.judge.agent}, rounds: {crew.judge.rounds}",
    }
    return str(told.get(crew.mode.value, ""))
