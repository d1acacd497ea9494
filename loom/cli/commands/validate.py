"""The `validate` command, which checks files that define agents, crews or permissions.

The command applies the same checks as a worker in this directory.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from loom.app.agent_files import agent_files
from loom.app.document_files import read_document
from loom.app.file_kinds import Document, Kind, Surroundings, kind_of, schema_of
from loom.app.registry import Registry
from loom.cli.arguments import App, Json, new_app
from loom.cli.commands.knowledge import missing_bases
from loom.cli.output import print_json, print_notice, visible
from loom.cli.worker_preview import load_registry, with_app
from loom.composition.load_settings import read_settings
from loom.domain.core.errors import BadRequest
from loom.domain.permissions.subjects import Place
from loom.exit_codes import COMPLETED, USAGE

app = new_app()


@app.command()
def validate(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE...", help="YAML, TOML or JSON files.")] = None,
    *,
    schema: Annotated[
        str | None, typer.Option(metavar="KIND", help="Print the JSON Schema for this kind of file instead.")
    ] = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Check files that define agents, crews or permissions.

    This command also draws a tree that shows which agent each agent extends. A missing knowledge base causes only a
    warning, since you may add it later. Exit code 2 means that a file is invalid.
    """
    if schema is not None:
        print_json(schema_of(schema))
        return
    if not files:
        raise BadRequest("name at least one file, or use --schema KIND", field="FILE")
    found, drawings = _validated(files, app)
    is_fine = not any(each["problems"] for each in found)
    if as_json:
        print_json({"ok": is_fine, "files": found, "graph": drawings})
    else:
        _print_report(found, drawings)
    raise typer.Exit(COMPLETED if is_fine else USAGE)


def _validated(files: Sequence[Path], app: str | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    found: list[dict[str, Any]] = []
    whole: list[tuple[Kind, Document, dict[str, Any]]] = []
    for path in dict.fromkeys(files):
        entry: dict[str, Any] = {"file": str(path), "kind": None, "problems": [], "warnings": []}
        found.append(entry)
        try:
            document = Document(path=path, fields=read_document(path))
            kind = kind_of(document)
        except BadRequest as error:
            entry["problems"] = [error.message]
            continue
        entry |= {"kind": kind.name, "problems": list(kind.alone(document))}
        if not entry["problems"]:
            whole.append((kind, document, entry))
    if len(whole) < len(found):
        waiting = "valid; will be checked with the other files when they are valid"
        for _, document, entry in whole:
            entry["problems"] = [f"{document.path}: {waiting}"]
        return found, {}
    try:
        around = _surroundings([document.path for kind, document, _ in whole if kind.name == "agent"], app)
    except BadRequest as error:
        # Any of the files, or the app, can cause a name conflict or refer to a missing name.
        whole[0][2]["problems"] = error.message.splitlines()
        return found, {}
    for kind, document, entry in whole:
        entry["problems"] = list(kind.among(document, around))
    _warn_of_missing_knowledge({str(document.path.resolve()): entry for _, document, entry in whole}, around.registry)
    kinds = {kind.name: kind for kind, _, _ in whole}
    return found, {name: drawing for name, kind in kinds.items() if (drawing := kind.drawn(around))}


def _warn_of_missing_knowledge(entries: Mapping[str, dict[str, Any]], registry: Registry) -> None:
    """Add a warning for each missing knowledge base that an agent names. One query checks all names."""
    naming = [agent for agent in registry.agents.values() if agent.origin in entries and agent.knowledge]
    # Knowledge bases that the app registers aren't missing, because the worker ingests them.
    names = dict.fromkeys(n for agent in naming for n in agent.knowledge if n not in registry.knowledge)
    missing = missing_bases(read_settings(), tuple(names))
    for agent in naming:
        entry = entries[agent.origin]
        entry["warnings"] = [
            f"{entry['file']}: knowledge: there is no base {name!r} yet; `loom knowledge list` shows all bases"
            for name in agent.knowledge
            if name in missing
        ]


def _surroundings(agents: Iterable[Path], app: str | None) -> Surroundings:
    settings = with_app(read_settings(), app)
    registry = load_registry(settings, _with_folders(agents), checks_rules=False)  # rules are checked per file
    return Surroundings(registry=registry, place=Place(workspace=str(settings.workspace), home=str(Path.home())))


def _with_folders(agents: Iterable[Path]) -> list[Path]:
    """Return the given agent files and all other agent files in the same folders, which they may extend."""
    paths = [path.resolve() for path in agents]
    return [*paths, *agent_files(path.parent for path in paths if path.parent.name == "agents")]


def _print_report(found: Sequence[dict[str, Any]], drawings: dict[str, str]) -> None:
    for entry in found:
        if entry["problems"]:
            for problem in entry["problems"]:
                print_notice(problem)
        else:
            typer.echo(visible(f"{entry['file']}: {entry['kind']}, valid"))
        for warning in entry["warnings"]:
            print_notice(warning)
    for drawing in drawings.values():
        typer.echo()
        for line in drawing.splitlines():
            typer.echo(visible(line))
