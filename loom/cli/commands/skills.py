"""skills: which skills runs would have here, what each is and may do; checking one, and taking one in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loom.cli.commands import skill_add as skill_adding
from loom.cli.output import console, plain, print_json, tell
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest
from loom.exit_codes import COMPLETED, USAGE

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.composition.settings import Settings
    from loom.domain.skills.catalog import FoundSkills, SkillFolder

READY = "ready"
HIDDEN = "hidden"
UNTRUSTED = "not trusted"
NOT_ENABLED = "not enabled"

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
App = Annotated[str | None, typer.Option("--app", help="package.module:app, in place of LOOM_APP.")]
Workspace = Annotated[Path | None, typer.Option(help="Workspace of the run; default LOOM_WORKSPACE.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Skills: which there are, what they may do; check one, add one.", no_args_is_help=True)
    group.command("list")(list_skills)
    group.command("show")(show)
    group.command("validate")(validate)
    group.command("add")(skill_adding.add)
    app.add_typer(group, name="skills")


def list_skills(workspace: Workspace = None, app: App = None, as_json: Json = False) -> None:
    """List the skills of runs here, and those that are left out, with the reason."""
    found = _listed(_settings(app), workspace)
    if as_json:
        print_json(found)
        return
    _print(found)


def show(
    name: Annotated[str, typer.Argument(help="Name of the skill.")],
    workspace: Workspace = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show one skill: where it comes from, what it costs, what it may do, and its instructions."""
    from loom.cli.commands.skill_facts import print_facts  # noqa: PLC0415

    facts, body = _shown(_settings(app), workspace, name)
    if as_json:
        print_json({**facts, "instructions": body})
        return
    print_facts(facts)
    typer.echo(plain(f"\n{body}"))


def validate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of a skill, or its SKILL.md.")],
    as_json: Json = False,
) -> None:
    """Check a skill against the format, running nothing. Exit code 2: no run could use it."""
    from loom.cli.commands.skill_facts import inspect  # noqa: PLC0415
    from loom.domain.skills.documents import BrokenSkill  # noqa: PLC0415

    folder = skill_adding.folder_of(path)
    errors: list[str] = []
    warnings: list[str] = []
    try:
        warnings = list(inspect(str(folder), "").warnings)
    except BrokenSkill as error:
        errors = [str(error)]
    if as_json:
        print_json({"ok": not errors, "path": str(folder), "errors": errors, "warnings": warnings})
    else:
        for kind, lines in (("error", errors), ("warning", warnings)):
            for line in lines:
                tell(f"{folder.name}: {kind}: {line}")
        typer.echo(plain(f"{folder.name}: {'cannot be used' if errors else 'can be used'}"))
    raise typer.Exit(USAGE if errors else COMPLETED)


def _settings(app: str | None) -> "Settings":
    from loom.composition.load_settings import read_settings  # noqa: PLC0415

    settings = read_settings()
    return settings.model_copy(update={"app": app}) if app else settings


def _found(settings: "Settings", workspace: Path | None) -> "FoundSkills":
    from loom.activities.toolbox.built_in.made_tools import MadeTools  # noqa: PLC0415
    from loom.composition.tool_registry import registry_from, skills_from  # noqa: PLC0415

    place = (workspace or settings.workspace).expanduser().resolve()
    if not place.is_dir():
        raise BadRequest(f"--workspace: {str(place)!r} is not a folder; create it", field="--workspace")
    return skills_from(settings, registry_from(settings, MadeTools(sandbox=None))).found(place)


def _listed(settings: "Settings", workspace: Path | None) -> dict[str, Any]:
    found = _found(settings, workspace)
    brief = ("name", "description", "source", "root")
    return {
        "skills": [{key: getattr(skill, key) for key in brief} for skill in found.skills],
        "hidden": [{key: getattr(skill, key) for key in brief} for skill in found.hidden],
        "skipped": [
            {"path": each.path, "source": each.source, "why": each.why}
            for each in found.problems
            if not each.is_warning
        ],
        "warnings": [
            {"path": each.path, "source": each.source, "why": each.why} for each in found.problems if each.is_warning
        ],
        "packages": [
            {"name": folder.source.removeprefix("package "), "path": folder.path, "enabled": False}
            for folder in _not_enabled(settings)
        ],
    }


def _not_enabled(settings: "Settings") -> "tuple[SkillFolder, ...]":
    """Folders of packages that are installed and that no setting names; nothing of these is imported."""
    from loom.app.packages import enabled, installed, unopened_skills  # noqa: PLC0415

    packages = installed()
    used = {package.name for package in enabled(settings.packages, packages)}
    return unopened_skills(package for package in packages.values() if package.name not in used)


def _shown(settings: "Settings", workspace: Path | None, name: str) -> tuple[dict[str, Any], str]:

    from loom.activities.adapters.skills.folders import skills_in  # noqa: PLC0415
    from loom.cli.commands.skill_facts import facts, inspect  # noqa: PLC0415

    found = _found(settings, workspace)
    closed = [(folder, NOT_ENABLED) for folder in _not_enabled(settings)]
    closed += [(folder, UNTRUSTED) for folder in found.untrusted]
    others = [(skill, state) for folder, state in closed for skill in skills_in(folder).skills]
    every = [(s, READY) for s in found.skills] + [(s, HIDDEN) for s in found.hidden] + others
    match = next(((skill, state) for skill, state in every if skill.name == name), None)
    if match is None:
        hint = nearest(name, [skill.name for skill, _ in every], "`loom skills list` shows those there are")
        raise BadRequest(f"there is no skill {name!r}: {hint}", field="NAME")
    skill, state = match
    inspected = inspect(skill.root, skill.source)
    return facts(inspected, state), inspected.document.body


def _print(found: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415

    if found["skills"]:
        table = Table("skill", "from", "what it is for", box=None, padding=(0, 2, 0, 0))
        for skill in found["skills"]:
            table.add_row(skill["name"], plain(skill["source"]), plain(" ".join(skill["description"].split())))
        console(wide=True).print(table)
    else:
        tell("there are none: `loom skills add FOLDER`, or see what was left out below")
    for skill in found["hidden"]:
        tell(f"hidden: {skill['root']}: a skill of its name lies nearer")
    for each in found["skipped"]:
        tell(f"left out: {each['path']} ({each['source']}): {each['why']}")
    for each in found["warnings"]:
        tell(f"warning: {each['path']}: {each['why']}")
    for package in found["packages"]:
        tell(f"not enabled: package {package['name']}: name it in LOOM_PACKAGES")
