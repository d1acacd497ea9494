"""What a worker reads as code or instructions, as far as no name tells it."""

import sys
from pathlib import Path

import pytest

from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.composition.load_settings import read_settings
from loom.composition.tool_registry import registry_from
from loom.composition.worker_files import FilesOfWorker
from loom.domain.permissions.obeyed import WorkerFiles

MODULES = {
    "shop_of_files.py": """
from loom import LoomApp
import shelf_of_files.prices

app = LoomApp()
app.register_skill("own/hello")
""",
    "shelf_of_files/__init__.py": "",
    "shelf_of_files/prices.py": "",
    "shelf_of_files/unused.py": "",
    "own/hello/SKILL.md": "---\nname: hello\ndescription: says hello\n---\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app and what it imports, which is also a workspace."""
    root = tmp_path.resolve()
    for name, text in MODULES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for folder in ("people", "more/people", "teams"):
        (root / folder).mkdir(parents=True)
    (root / "server.py").touch()
    (root / "loom.toml").write_text('[mcp.own]\ncommand = "python"\nargs = ["server.py", "--fast"]\n')
    for module in ("shelf_of_files", "shelf_of_files.prices"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("LOOM_APP", "shop_of_files.py:app")
    monkeypatch.setenv("LOOM_AGENTS", "people,more/people")
    monkeypatch.setenv("LOOM_CREWS", str(root / "teams"))
    return root


def read_by_worker(project: Path) -> WorkerFiles:
    settings = read_settings()
    files = FilesOfWorker(settings)
    files.add(registry_from(settings, MadeTools(sandbox=None)))
    return files(str(project))


def test_a_worker_reads_its_folders_its_modules_and_its_servers(project: Path) -> None:
    found = read_by_worker(project)

    folders = ("agents", "crews", "people", "more/people", "teams", "own/hello")
    assert {str(project / each) for each in folders} <= found.folders
    files = ("shop_of_files.py", "shelf_of_files/__init__.py", "shelf_of_files/prices.py", "server.py")
    assert {str(project / each) for each in files} <= found.files
    assert str(project / "shelf_of_files/unused.py") not in found


def test_what_python_would_prefer_to_a_module_belongs_to_it(project: Path) -> None:
    found = read_by_worker(project)
    assert str(project / "shop_of_files/__init__.py") in found.files
    assert str(project / "shelf_of_files/prices.abi3.so") in found.files


def test_libraries_are_no_files_of_a_project(project: Path) -> None:
    import pydantic  # noqa: PLC0415 - the module whose file is looked for

    assert pydantic.__file__ not in read_by_worker(project).files


def test_a_skill_that_a_workspace_links_to_belongs_to_it(project: Path) -> None:
    (project / ".agents/skills").mkdir(parents=True)
    (project / ".agents/skills/hello").symlink_to("../../own/hello")
    assert str(project / "own/hello") in read_by_worker(project).folders
