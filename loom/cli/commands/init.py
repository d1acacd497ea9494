"""The `init` command, which creates a project."""

import re
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from loom.cli.arguments import Json, local_path, new_app
from loom.cli.output import print_json
from loom.domain.core.errors import BadRequest

FILES: Final = {
    "agent.py": "agent.py",
    "test_agent.py": "test_agent.py",
    "worker.py": "worker.py",
    "loom.toml": "loom.toml",
    "compose.yaml": "compose.yaml",
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".env.example": "env.example",
    ".gitignore": "gitignore",
}
"""The files of a new project, and the templates that they come from. A packager would leave out dot files."""

app = new_app()


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.")] = Path(),
    as_json: Json = False,
) -> None:
    """Create a project with an agent, its tests, a worker and a Compose file.

    If one of the files already exists, this command writes nothing and exits with code 2.
    """
    root = local_path(folder, "DIR")
    if root.exists() and not root.is_dir():
        raise BadRequest(f"{root} is a file: name a folder for the project", field="DIR")
    if taken := [name for name in FILES if (root / name).exists()]:
        raise BadRequest(f"{root} already has {', '.join(taken)}: choose another folder, or move them", field="DIR")
    words = {"name": _project_name(root.name), "version": version("loom-agents")}
    try:
        _write_files(root, words)
    except OSError as error:
        raise BadRequest(f"cannot write to {root}: {error.strerror}. Choose another folder", field="DIR") from None
    if as_json:
        print_json({"folder": str(root), "files": list(FILES)})
    else:
        typer.echo(f"Created {words['name']} in {root}. README.md says how to test and run it.")


def _write_files(root: Path, words: Mapping[str, str]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, template in FILES.items():
        text = files("loom.cli").joinpath("project_template", f"{template}.tmpl").read_text(encoding="utf-8")
        (root / name).write_text(Template(text).substitute(words), encoding="utf-8")


def _project_name(folder: str) -> str:
    """Return the folder's name as the name of a package."""
    return re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-") or "my-agent"
