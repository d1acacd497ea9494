"""`loom skills add`: a skill copied to where runs find it, after it was checked, shown and agreed to."""

import os
import shutil
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated, Final

import typer

from loom.cli.output import plain, print_json, tell
from loom.domain.core.errors import BadRequest

if TYPE_CHECKING:
    from loom.cli.commands.skill_facts import Inspected

PLACE: Final = ".agents/skills"
"""Where it goes, in the home or in the working directory: other programs that know the format look there, too."""
MOST_BYTES: Final = 50 * 1024 * 1024


def add(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of a skill.")],
    user: Annotated[bool, typer.Option("--user", help="For all your runs: ~/.agents/skills (default).")] = False,
    project: Annotated[bool, typer.Option("--project", help="For runs in this folder: ./.agents/skills.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Show what a skill is and may do, ask, and copy it to where runs find it; nothing of it is run."""
    from loom.cli.commands.skill_facts import facts, inspect, print_facts  # noqa: PLC0415
    from loom.domain.skills.documents import BrokenSkill  # noqa: PLC0415

    if user and project:
        raise BadRequest("--user or --project, not both", field="--project")
    folder = folder_of(path)
    try:
        found = inspect(str(folder), "project" if project else "user")
    except BrokenSkill as error:
        raise BadRequest(f"{folder} is no skill that can be used: {error}", field="PATH") from None
    _refuse(found, folder)
    about = facts(found, "not added yet")
    target = (Path.cwd() if project else _home()) / PLACE / found.skill.name
    if target.exists():
        raise BadRequest(f"{target} is there already: remove it first", field="PATH")
    if not as_json:
        print_facts(about)
    if not yes:
        _confirm(target, as_json=as_json)
    _copy(found, folder, target)
    if as_json:
        print_json({**about, "path": str(target), "state": "added"})
        return
    typer.echo(plain(f"added {found.skill.name}: {target}"))
    if project:
        tell("runs have it only where this folder is trusted: name it in LOOM_TRUSTED_FOLDERS")


def _home() -> Path:
    from loom.composition.load_settings import read_settings  # noqa: PLC0415

    if (home := read_settings().skills_home) is None:
        raise BadRequest("LOOM_SKILLS_HOME is off, so no run would have it: set it, or give --project", field="--user")
    return home


def folder_of(path: Path) -> Path:
    """The folder that a path means, itself or as that of its SKILL.md; raises BadRequest."""
    real = path.expanduser().resolve()
    folder = real.parent if real.is_file() else real
    if not folder.is_dir():
        raise BadRequest(f"{path} is neither a folder nor a SKILL.md", field="PATH")
    return folder


def _refuse(found: "Inspected", folder: Path) -> None:
    """What lies in no skill that somebody means well with."""
    from loom.activities.toolbox.built_in.skill_files import MOST_FILES, strange_files  # noqa: PLC0415

    if odd := next(strange_files(folder), ""):
        raise BadRequest(f"{folder}: {odd}: a skill has only files and folders of its own", field="PATH")
    if len(found.files) >= MOST_FILES:
        raise BadRequest(f"{folder} has {MOST_FILES} files or more: that is no skill", field="PATH")
    if (size := sum(file.size for file in found.files)) > MOST_BYTES:
        raise BadRequest(f"{folder} has {size} bytes; {MOST_BYTES} are the most", field="PATH")


def _confirm(target: Path, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise BadRequest("nobody is there to ask: look at it with `loom skills show`, then give --yes", field="--yes")
    typer.confirm(f"Copy it to {target}?", abort=True)


def _copy(found: "Inspected", folder: Path, target: Path) -> None:
    """File by file, opened without following links, and put in its place in one step."""
    from loom.activities.toolbox.built_in.skill_files import opened  # noqa: PLC0415

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
