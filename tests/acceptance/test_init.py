"""`loom init`: a project whose own tests pass at once."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.commands import Commands, commands_in
from tests.docs_pages import SHELLS, blocks_of, lines_of, shell

CHECKOUT = Path(__file__).parents[2]
CODE = {"agent.py", "test_agent.py", "worker.py"}
FILES = CODE | {"compose.yaml", "loom.toml", "pyproject.toml", "README.md", ".env.example", ".gitignore"}
LEFT = {"__pycache__", ".pytest_cache"}
"""What pytest leaves behind."""


@pytest.fixture
def loom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """`loom` in an empty folder."""
    with commands_in(tmp_path, monkeypatch) as commands:
        yield commands


@pytest.mark.slow
def test_the_tests_of_a_new_project_pass(loom: Commands) -> None:
    _, line = lines_of(blocks_of("docs/testing.md", *SHELLS)[0])
    told = shell(line.replace("my-project", "'My Shop'"), loom.folder, {**os.environ, "PYTEST_ADDOPTS": "-W error"})
    assert "2 passed" in told
    project = loom.folder / "My Shop"
    assert {each.name for each in project.iterdir()} - LEFT == FILES
    assert tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] == "my-shop"
    assert set(yaml.safe_load((project / "compose.yaml").read_text())["services"]) >= {"temporal", "postgres", "worker"}


def test_commands_in_a_new_project_find_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "shop"
    with commands_in(tmp_path, monkeypatch) as loom:
        assert loom("init", "shop").code == 0
    shutil.copy(project / ".env.example", project / ".env")
    with commands_in(project, monkeypatch) as loom:
        told = loom("agents", "list", "--json")
    assert "support" in [each["name"] for each in json.loads(told.out)], told.err


def test_files_that_are_there_are_named_and_kept(loom: Commands) -> None:
    (loom.folder / "agent.py").write_text("mine")
    (loom.folder / "README.md").write_text("mine")
    ran = loom("init")
    assert ran.code == 2
    assert "already has agent.py, README.md" in ran.err
    assert {each.name for each in loom.folder.iterdir()} == {"agent.py", "README.md"}
    assert loom("init", "agent.py").code == 2
    nowhere = loom("init", "/proc/shop")
    assert (nowhere.code, "cannot write to /proc/shop" in nowhere.err) == (2, True)


def test_json_names_the_files(loom: Commands) -> None:
    told = json.loads(loom("init", "shop", "--json").out)
    assert (told["folder"], set(told["files"])) == (str(loom.folder / "shop"), FILES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_new_project_works_with_the_wheel_in_a_fresh_environment(tmp_path: Path) -> None:
    def run(*command: str | Path, cwd: Path = tmp_path) -> None:
        ran = subprocess.run(
            [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False, env=env
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "PYTHON"))}
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, CHECKOUT)
    (wheel,) = tmp_path.glob("loom_agents-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    scripts = tmp_path / "venv" / "bin"
    run(scripts / "pip", "install", f"loom-agents[testing] @ {wheel.as_uri()}")
    run(scripts / "loom", "init", "shop")
    shop = tmp_path / "shop"
    run(scripts / "pytest", "-q", cwd=shop)
    (shop / ".env").write_text((shop / ".env.example").read_text().replace("openai:gpt-5.2", "demo"))
    try:
        run(scripts / "loom", "up", "--detach", cwd=shop)
        run(scripts / "loom", "run", "What about order 7?", "--agent", "support", cwd=shop)
    finally:
        run(scripts / "loom", "down", cwd=shop)
