"""The `crew` commands, which run and inspect crews. In a crew, several agents work on one task."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.table import Table

from loom.app.crew_files import FOLDER, read_crew_file
from loom.app.document_files import read_document
from loom.cli.arguments import (
    App,
    Archive,
    Budget,
    Git,
    Json,
    Metadata,
    OutputSchema,
    Patience,
    PermissionMode,
    Priority,
    Push,
    Revision,
    Tenant,
    User,
    named_workspace,
    new_app,
    read_fields,
    user_name,
)
from loom.cli.commands.run import launch, unattended
from loom.cli.commands.validate import validate as validate_files
from loom.cli.output import console, counted, one_line, plain, print_json, visible
from loom.cli.worker_preview import load_registry, named, note_preview, running_worker, with_app
from loom.composition.load_settings import load_settings
from loom.composition.worker_catalog import crew_summaries
from loom.domain.core.messages import JsonObject
from loom.domain.crews.crew import Crew
from loom.workflows.validation import read_crew_request

FILE_ENDINGS: Final = (".yaml", ".yml", ".toml", ".json")
COLUMN: Final = 14
"""Width of the column that shows field names."""

FileOrName: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="A crew file, or the name of one of the worker's crews.")
]

app = new_app("crew", "Run and inspect crews: several agents on one task.")


@app.command()
def run(
    crew: FileOrName,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task; `-` reads it from standard input.")],
    *,
    model: Annotated[
        str | None, typer.Option(help="Model for members that don't define one: openai:NAME, anthropic:NAME or demo.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Conversation that this run belongs to.")] = None,
    workspace: Annotated[str | None, typer.Option(metavar="DIR", help="Folder that all members work in.")] = None,
    git: Git = None,
    revision: Revision = None,
    push: Push = None,
    archive: Archive = None,
    permissions: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Rules that override every member's rules.")
    ] = None,
    mode: PermissionMode = None,
    max_turns: Annotated[int | None, typer.Option(help="Maximum number of steps of the crew.")] = None,
    patience: Patience = None,
    budget: Budget = None,
    output_schema: OutputSchema = None,
    metadata: Metadata = None,
    priority: Priority = None,
    tenant: Tenant = None,
    user: User = None,
    run_id: Annotated[str | None, typer.Option("--id", metavar="RUN", help="Id for the new run.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run, print its id and return.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every tool call of the crew.")] = False,
    as_json: Json = False,
) -> None:
    """Start a crew and watch it until it ends.

    All other commands accept the crew's run id. Exit codes are the same as for `loom run`.
    """
    request = read_fields(
        model=model,
        session_id=session,
        workspace=named_workspace(workspace, git, revision, push, archive, on_stdin="TASK" if task == "-" else ""),
        permissions=permissions,
        mode=mode,
        max_turns=max_turns,
        patience=patience,
        budget=budget,
        output_schema=output_schema,
        metadata=metadata,
        priority=priority,
        tenant=tenant,
        user_id=user,
    )
    requested = _for_request(crew)
    words = sys.stdin.read() if task == "-" else task
    if yes and detach:
        request = unattended(request)
    read_crew_request({"crew": requested, "task": words, **request})
    launch(
        lambda loom: loom.start_crew(requested, words, run_id=run_id, by=user_name(), **request),
        detach=detach,
        yes=yes,
        as_json=as_json,
    )


@app.command()
def show(crew: FileOrName, app: App = None, as_json: Json = False) -> None:
    """Show the members and failure handling of a crew in a file, or that a worker started in this folder would have.

    The output explains how the members share a task, what each member does, and what happens if one fails.
    """
    found = _in_file(crew)
    if found is None:
        otherwise = (
            "`loom crew list` shows all crews; for one of a running worker's app, pass --app or set LOOM_APP;"
            " to name a file, include its suffix, such as .yaml"
        )
        found = named(crew, _crews(app), "crew", otherwise=otherwise, field="crew")
        note_preview(app, "crew")
    if as_json:
        print_json(asdict(found))
        return
    for line in _lines(found):
        typer.echo(visible(line))


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Crew files.")],
    app: App = None,
    as_json: Json = False,
) -> None:
    """Check crew files as a worker in this directory would.

    Exit code 2 means that a file is invalid.
    """
    validate_files(files, schema=None, app=app, as_json=as_json)


@app.command("list")
def list_crews(app: App = None, as_json: Json = False) -> None:
    """List the running worker's crews, and show where they are defined.

    If you name an app, or if no worker is running, list the crews that a worker started in this folder would have.
    """
    running = running_worker(app, "crews")
    found = crew_summaries(_crews(app).values()) if running is None else running.crews
    if as_json:
        print_json(found)
        return
    if not found:
        folder = load_settings().home / FOLDER
        typer.echo(f"no crews; add one as {folder}/NAME.yaml, or create one with LoomApp.create_crew")
        return
    table = Table("crew", "mode", "members", "what it is for", "from", box=None, padding=(0, 2, 0, 0))
    for each in found:
        cells = (each["name"], each["mode"], ", ".join(each["members"]), one_line(str(each["description"]), 60))
        table.add_row(*(plain(str(cell)) for cell in (*cells, each["origin"])))
    console(wide=True).print(table)


def _for_request(crew: str) -> str | JsonObject:
    """Return the crew's name, or the contents of its file so that the worker doesn't need the file."""
    found = _in_file(crew)
    if found is None:
        return crew
    fields = {name: value for name, value in read_document(Path(crew)).items() if name != "kind"}
    return {**fields, "name": found.name}


def _in_file(crew: str) -> Crew | None:
    return read_crew_file(Path(crew)) if crew.lower().endswith(FILE_ENDINGS) else None


def _crews(app: str | None) -> Mapping[str, Crew]:
    return load_registry(with_app(load_settings(), app)).crews


def _lines(crew: Crew) -> list[str]:
    lines = [f"{crew.name}  ({crew.origin})", *([f"  {crew.description}"] if crew.description else [])]
    lines.append(f"{'mode':<{COLUMN}}{crew.mode.value}{_mode_details(crew)}")
    for member in crew.members:
        agent = "" if member.agent == member.name else f" [{member.agent}]"
        lines.append(f"{'member':<{COLUMN}}{member.name}{agent}: {one_line(member.about)}")
        after = f", then {member.substitute}" if member.substitute else ""
        end = "the crew continues without it" if crew.carries_on_without(member) else "the crew stops"
        lines.append(f"{'':<{COLUMN}}  on failure: {counted(member.retries + 1, 'attempt')}{after}, then {end}")
    return lines


def _mode_details(crew: Crew) -> str:
    details: dict[str, Any] = {
        "coordinated": f", led by {crew.coordinator.agent}, at most {counted(crew.coordinator.max_rounds, 'round')}",
        "routed": f", by {crew.router.by}" + (f", else {crew.router.fallback}" if crew.router.fallback else ""),
        "parallel": f", answers combined by {crew.aggregate.by}",
        "tree": f", scored by {crew.judge.agent}, rounds: {crew.judge.rounds}",
    }
    return str(details.get(crew.mode.value, ""))
