"""validate: agents, permissions and other files checked as a worker here would, before one has to."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loom.cli.output import print_json, tell, visible
from loom.domain.core.errors import BadRequest
from loom.exit_codes import COMPLETED, USAGE

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.app.file_kinds import Kind, Surroundings
    from loom.app.registry import Registry


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def validate(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE...", help="YAML, TOML or JSON files.")] = None,
    *,
    schema: Annotated[str | None, typer.Option(metavar="KIND", help="Print the JSON Schema of a kind instead.")] = None,
    app: Annotated[str | None, typer.Option("--app", help="package.module:app, in place of LOOM_APP.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Check files that define agents or permissions, and draw who extends whom. Exit code 2: something is wrong.

    A knowledge base that is not there, where there is a database to ask, is a warning: it may be added later.
    """
    if schema is not None:
        from loom.app.file_kinds import schema_of  # noqa: PLC0415

        print_json(schema_of(schema))
        return
    if not files:
        raise BadRequest("name at least one file, or a kind with --schema", field="FILE")
    found, drawings = _validated(files, app)
    is_fine = not any(each["problems"] for each in found)
    if as_json:
        print_json({"ok": is_fine, "files": found, "graph": drawings})
    else:
        _tell(found, drawings)
    raise typer.Exit(COMPLETED if is_fine else USAGE)


def _validated(files: Sequence[Path], app: str | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    from loom.app.document_files import read_document  # noqa: PLC0415
    from loom.app.file_kinds import Document, kind_of  # noqa: PLC0415

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
        waiting = "fine by itself; not checked beside the others until those are mended"
        for _, document, entry in whole:
            entry["problems"] = [f"{document.path}: {waiting}"]
        return found, {}
    try:
        around = _surroundings([document.path for kind, document, _ in whole if kind.name == "agent"], app)
    except BadRequest as error:
        # What clashes or is not there may be the fault of any of them, or of what they are put beside.
        whole[0][2]["problems"] = error.message.splitlines()
        return found, {}
    for kind, document, entry in whole:
        entry["problems"] = list(kind.among(document, around))
    _warn_of_knowledge({str(document.path.resolve()): entry for _, document, entry in whole}, around.registry)
    kinds = {kind.name: kind for kind, _, _ in whole}
    return found, {name: drawing for name, kind in kinds.items() if (drawing := kind.drawn(around))}


def _warn_of_knowledge(entries: Mapping[str, dict[str, Any]], registry: "Registry") -> None:
    """Say which knowledge bases that agents name are not there; one question for all of them."""
    from loom.cli.commands.knowledge import missing_bases  # noqa: PLC0415
    from loom.composition.load_settings import read_settings  # noqa: PLC0415

    naming = [agent for agent in registry.agents.values() if agent.origin in entries and agent.knowledge]
    # What the app registers its worker takes in.
    names = dict.fromkeys(n for agent in naming for n in agent.knowledge if n not in registry.knowledge)
    missing = missing_bases(read_settings(), tuple(names))
    for agent in naming:
        entry = entries[agent.origin]
        entry["warnings"] = [
            f"{entry['file']}: knowledge: there is no base {name!r} yet: `loom knowledge list` shows those there are"
            for name in agent.knowledge
            if name in missing
        ]


def _surroundings(agents: Iterable[Path], app: str | None) -> "Surroundings":
    from loom.activities.toolbox.built_in.made_tools import MadeTools  # noqa: PLC0415
    from loom.app.file_kinds import Surroundings  # noqa: PLC0415
    from loom.composition.load_settings import read_settings  # noqa: PLC0415
    from loom.composition.tool_registry import registry_from  # noqa: PLC0415
    from loom.domain.permissions.subjects import Place  # noqa: PLC0415

    settings = read_settings()
    settings = settings.model_copy(update={"app": app}) if app else settings
    # Rules are looked at file by file.
    registry = registry_from(settings, MadeTools(sandbox=None), files=_with_those_beside(agents), checks_rules=False)
    return Surroundings(registry=registry, place=Place(workspace=str(settings.workspace), home=str(Path.home())))


def _with_those_beside(agents: Iterable[Path]) -> list[Path]:
    """Agent files with the others of their folders, which they may extend."""
    from loom.app.agent_files import agent_files  # noqa: PLC0415

    paths = [path.resolve() for path in agents]
    return [*paths, *agent_files(path.parent for path in paths if path.parent.name == "agents")]


def _tell(found: Sequence[dict[str, Any]], drawings: dict[str, str]) -> None:
    for entry in found:
        if entry["problems"]:
            for problem in entry["problems"]:
                tell(problem)
        else:
            typer.echo(visible(f"{entry['file']}: {entry['kind']}, fine"))
        for warning in entry["warnings"]:
            tell(warning)
    for drawing in drawings.values():
        typer.echo()
        for line in drawing.splitlines():
            typer.echo(visible(line))
