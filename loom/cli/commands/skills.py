"""The `skills` commands, which list, inspect, check and add skills."""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.table import Table

from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.activities.adapters.skills.folders import skills_in
from loom.activities.adapters.skills.front_matter import read_skill
from loom.activities.adapters.skills.requirements import required_by, unmet
from loom.activities.toolbox.built_in.skill_files import (
    LONGEST,
    MOST_FILES,
    SCRIPTS,
    SkillFile,
    digest_of,
    files_of,
    opened,
    read,
    strange_files,
)
from loom.app.packages import enabled, installed, unopened_skills
from loom.cli.arguments import App, Json, local_path, new_app
from loom.cli.output import console, counted, plain, print_json, print_notice
from loom.cli.worker_preview import load_registry, named, running_worker, with_app
from loom.composition.load_settings import read_settings
from loom.composition.settings import Settings
from loom.composition.tool_registry import skills_from
from loom.composition.worker_catalog import skills_view
from loom.domain.core.errors import BadRequest
from loom.domain.core.tokens import text_tokens
from loom.domain.skills.catalog import FoundSkills, Skill, SkillFolder, tool_name
from loom.domain.skills.documents import BrokenSkill, Described, Document
from loom.domain.skills.scripts import tool_of
from loom.exit_codes import COMPLETED, USAGE

READY: Final = "ready"
HIDDEN: Final = "hidden"
UNTRUSTED: Final = "not trusted"
NOT_ENABLED: Final = "not enabled"

FOLDER: Final = ".agents/skills"
"""The folder for added skills, in the home or current directory. Other programs that support skills also read it."""
MAX_BYTES: Final = 50 * 1024 * 1024

Workspace: TypeAlias = Annotated[Path | None, typer.Option(help="The run's workspace; default: LOOM_WORKSPACE.")]

app = new_app("skills", "List, check and add skills.")


@app.command("list")
def list_skills(workspace: Workspace = None, app: App = None, as_json: Json = False) -> None:
    """List the running worker's skills, and show why other skills were skipped.

    If you name an app or a workspace, or if no worker is running, list the skills that a worker started in this folder
    would have.
    """
    settings = with_app(read_settings(), app)
    running = None if workspace is not None else running_worker(app, "skills")
    found = {
        **(skills_view(_found(settings, workspace)) if running is None else running.skills),
        "packages": _packages(settings),
    }
    if as_json:
        print_json(found)
        return
    _print_skills(found)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the skill.")],
    workspace: Workspace = None,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Show a skill's source, token cost, abilities and instructions."""
    inspected, state = _inspect_named(with_app(read_settings(), app), workspace, name)
    facts, body = _facts(inspected, state), inspected.document.body
    if as_json:
        print_json({**facts, "instructions": body})
        return
    _print_facts(facts)
    typer.echo(plain(f"\n{body}"))


@app.command()
def validate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A skill's folder or its SKILL.md.")],
    as_json: Json = False,
) -> None:
    """Check a skill's format without running anything.

    Exit code 2 means that the skill can't be used.
    """
    folder = _folder_of(path)
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
                print_notice(f"{folder.name}: {kind}: {line}")
        typer.echo(plain(f"{folder.name}: {'cannot be used' if errors else 'can be used'}"))
    raise typer.Exit(USAGE if errors else COMPLETED)


@app.command()
def add(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The skill's folder.")],
    user: Annotated[
        bool, typer.Option("--user", help="Add it for all your runs, in ~/.agents/skills (default).")
    ] = False,
    project: Annotated[
        bool, typer.Option("--project", help="Add it for runs in this folder, in ./.agents/skills.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a skill to a folder where runs find it.

    Loom shows the skill and its abilities, then asks for confirmation. It doesn't run any of the skill's files.
    """
    if user and project:
        raise BadRequest("use --user or --project, not both", field="--project")
    folder = _folder_of(path)
    try:
        found = inspect(str(folder), "project" if project else "user")
    except BrokenSkill as error:
        raise BadRequest(f"{folder} is not a usable skill: {error}", field="PATH") from None
    _refuse_suspicious(found, folder)
    facts = _facts(found, "not added yet")
    target = (Path.cwd() if project else _home()) / FOLDER / found.skill.name
    if target.exists():
        raise BadRequest(f"{target} already exists: remove it first", field="PATH")
    if not as_json:
        _print_facts(facts)
    if not yes:
        _confirm(target, as_json=as_json)
    _copy(found, folder, target)
    if as_json:
        print_json({**facts, "path": str(target), "state": "added"})
        return
    typer.echo(plain(f"added {found.skill.name}: {target}"))
    if project:
        print_notice("runs use it only if this folder is trusted: add the folder to LOOM_TRUSTED_FOLDERS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspected:
    """A skill with the contents of its folder."""

    described: Described
    document: Document
    files: Sequence[SkillFile]
    tools: dict[str, str]
    """The description of each script that is a tool, by tool name."""
    warnings: Sequence[str]

    @property
    def skill(self) -> Skill:
        """The skill's catalog entry."""
        return self.described.skill

    @property
    def scripts(self) -> list[str]:
        """The paths of files that can be run."""
        return [file.path for file in self.files if file.path.startswith(f"{SCRIPTS}/")]


def inspect(root: str, source: str) -> Inspected:
    """Read a skill's folder without running anything. Raises BrokenSkill if the skill is invalid."""
    described, document = read_skill(root, source)
    try:
        files = files_of(root)
        strange = list(strange_files(Path(root)))
    except OSError as error:
        raise BrokenSkill(f"its files cannot be read: {error}") from None
    tools: dict[str, str] = {}
    wrong: list[str] = []
    for file in files:
        if not file.path.startswith(f"{SCRIPTS}/") or file.size > LONGEST:
            continue
        name = tool_name(described.skill.name, file.path)
        try:
            tool = tool_of(read(root, file.path).decode("utf-8", "replace"), name, timeout=1)
        except BrokenSkill as error:
            wrong.append(f"{file.path}: {error}")
            continue
        if tool is not None:
            tools[name] = tool.description
    return Inspected(
        described=described,
        document=document,
        files=files,
        tools=tools,
        warnings=(*described.warnings, *wrong, *(f"{each}: it is left out" for each in strange)),
    )


def _found(settings: Settings, workspace: Path | None) -> FoundSkills:
    place = local_path(workspace or settings.workspace, "--workspace").resolve()
    if not place.is_dir():
        raise BadRequest(f"--workspace: {str(place)!r} is not a folder; create it", field="--workspace")
    return skills_from(settings, load_registry(settings)).found(place)


def _packages(settings: Settings) -> list[dict[str, Any]]:
    return [
        {"name": folder.source.removeprefix("package "), "path": folder.path, "enabled": False}
        for folder in _not_enabled(settings)
    ]


def _not_enabled(settings: Settings) -> tuple[SkillFolder, ...]:
    """Return the skill folders of installed packages that aren't enabled, without importing the packages."""
    packages = installed()
    used = {package.name for package in enabled(settings.packages, packages)}
    return unopened_skills(package for package in packages.values() if package.name not in used)


def _inspect_named(settings: Settings, workspace: Path | None, name: str) -> tuple[Inspected, str]:
    """Return the named skill and its state. Usable skills take precedence over all others."""
    found = _found(settings, workspace)
    closed = [(folder, NOT_ENABLED) for folder in _not_enabled(settings)]
    closed += [(folder, UNTRUSTED) for folder in found.untrusted]
    every = [(skill, READY) for skill in found.skills] + [(skill, HIDDEN) for skill in found.hidden]
    every += [(skill, state) for folder, state in closed for skill in skills_in(folder).skills]
    by_name = {skill.name: (skill, state) for skill, state in reversed(every)}
    skill, state = named(name, by_name, "skill", otherwise="`loom skills list` shows all skills")
    return inspect(skill.root, skill.source), state


def _print_skills(found: dict[str, Any]) -> None:
    if found["skills"]:
        table = Table("skill", "from", "what it is for", box=None, padding=(0, 2, 0, 0))
        for skill in found["skills"]:
            table.add_row(skill["name"], plain(skill["source"]), plain(" ".join(skill["description"].split())))
        console(wide=True).print(table)
    else:
        print_notice("no skills; add one with `loom skills add FOLDER`")
    for skill in found["hidden"]:
        print_notice(f"hidden: {skill['root']}: a closer skill has the same name")
    for each in found["skipped"]:
        print_notice(f"skipped: {each['path']} ({each['source']}): {each['why']}")
    for each in found["warnings"]:
        print_notice(f"warning: {each['path']}: {each['why']}")
    for package in found["packages"]:
        print_notice(f"not enabled: package {package['name']}: add it to LOOM_PACKAGES")


def _facts(inspected: Inspected, state: str) -> dict[str, Any]:
    """Return all information about a skill except its instructions."""
    skill = inspected.skill
    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "path": skill.root,
        "state": state,
        "version": skill.metadata.get("version", ""),
        "license": skill.license,
        "compatibility": skill.compatibility,
        "missing": list(_missing(skill)),
        "metadata": dict(skill.metadata),
        "allowed_tools": list(skill.allowed_tools),
        "scripts": inspected.scripts,
        "tools": inspected.tools,
        "files": len(inspected.files),
        "bytes": sum(file.size for file in inspected.files),
        "tokens": {
            "catalog": text_tokens(f"- {skill.name}: {skill.description}"),
            "instructions": text_tokens(inspected.document.body),
        },
        "digest": digest_of(skill.root),
        "warnings": list(inspected.warnings),
    }


def _missing(skill: Skill) -> Sequence[str]:
    """Return what the skill requires and commands on this machine don't have."""
    if (required := required_by(skill.root)).is_empty:
        return ()
    settings = read_settings()
    sandbox, _ = find_sandbox(
        settings.sandbox,
        settings.private_paths,
        settings.sandbox_limits,
        settings.sandbox_readable,
        settings.sandbox_environment,
    )
    with TemporaryDirectory() as place:
        return asyncio.run(unmet(required, sandbox, Path(place).resolve()))


def _print_facts(facts: dict[str, Any]) -> None:
    typer.echo(plain(f"{facts['name']}  ({facts['source']}, {facts['state']})\n\n{facts['description']}\n"))
    for key in ("path", "version", "license", "compatibility", "digest"):
        if facts[key]:
            typer.echo(plain(f"{key:<14} {facts[key]}"))
    if facts["missing"]:
        typer.echo(plain(f"{'missing here':<14} {'; '.join(facts['missing'])}"))
    tokens = facts["tokens"]
    typer.echo(f"{'tokens':<14} {tokens['catalog']} in each prompt, {tokens['instructions']} once it is loaded")
    typer.echo(f"{'files':<14} {facts['files']} ({counted(facts['bytes'], 'byte')})")
    for line in _abilities(facts):
        typer.echo(plain(line))
    for warning in facts["warnings"]:
        print_notice(f"warning: {warning}")


def _abilities(facts: dict[str, Any]) -> list[str]:
    """Describe the abilities that a skill has in a run."""
    lines = ["Models read its instructions unchanged: read them first, as you would read a program."]
    if facts["scripts"]:
        scripts, run = counted(len(facts["scripts"]), "script"), "run" if len(facts["scripts"]) > 1 else "runs"
        lines.append(
            f"It has {scripts}, which {run} in the sandbox, on the workspace and without network. Each call asks for"
            " approval unless a rule allows it."
        )
    if facts["tools"]:
        lines.append(f"Scripts that are tools: {', '.join(facts['tools'])}.")
    if facts["allowed_tools"]:
        lines.append(f"It asks for the tools {', '.join(facts['allowed_tools'])}. This request alone allows nothing.")
    return lines


def _home() -> Path:
    if (home := read_settings().skills_home) is None:
        raise BadRequest("LOOM_SKILLS_HOME is off, so runs would not find it: set it, or use --project", field="--user")
    return home


def _folder_of(path: Path) -> Path:
    """Return the skill folder for a path to the folder or its SKILL.md. Raises BadRequest if there is none."""
    real = local_path(path, "PATH").resolve()
    folder = real.parent if real.is_file() else real
    if not folder.is_dir():
        raise BadRequest(f"{path} is neither a folder nor a SKILL.md", field="PATH")
    return folder


def _refuse_suspicious(found: Inspected, folder: Path) -> None:
    if strange := next(strange_files(folder), ""):
        raise BadRequest(f"{folder}: {strange}: a skill may only contain regular files and folders", field="PATH")
    if len(found.files) >= MOST_FILES:
        raise BadRequest(f"{folder} has {MOST_FILES} files or more: too many for a skill", field="PATH")
    if (size := sum(file.size for file in found.files)) > MAX_BYTES:
        raise BadRequest(f"{folder} has {size} bytes; the maximum is {MAX_BYTES}", field="PATH")


def _confirm(target: Path, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise BadRequest(
            "cannot ask for confirmation here: check it with `loom skills show`, then use --yes", field="--yes"
        )
    typer.confirm(f"Copy it to {target}?", abort=True)


def _copy(found: Inspected, folder: Path, target: Path) -> None:
    """Copy each file without following links, then move the copy into place in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=".adding-", dir=target.parent))
    try:
        for file in found.files:
            copied = draft / file.path
            copied.parent.mkdir(parents=True, exist_ok=True)
            with opened(str(folder), file.path) as source, copied.open("wb") as out:
                shutil.copyfileobj(source, out)
                copied.chmod(0o755 if os.fstat(source.fileno()).st_mode & 0o100 else 0o644)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise BadRequest(f"{target} could not be written: {error}", field="PATH") from None
