"""The wheel in a fresh environment, beside a project with `workflows/`, `activities/` and `worker.py` of its own."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from loom.testing.harness import Addresses, settings_for
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import PATIENCE, eventually
from loom.testing.worker_processes import environment
from tests.acceptance.conftest import PIP, ROOT

PROJECT = Path(__file__).parent / "other_project"
PYRIGHT = Path(sysconfig.get_path("scripts")) / "basedpyright"
OURS = {"loom"}
LOOKS_UP = calls(ToolUse("shelf_mark", {"title": "loom"}))


@dataclass(frozen=True)
class Installed:
    """A project in an environment with the wheel."""

    project: Path
    python: Path
    packages: Path

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these words in the project's folder."""
        return subprocess.run(
            [self.python, *words],
            cwd=self.project,
            env=clean(**env),
            check=False,
            capture_output=True,
            text=True,
        )


def clean(**more: str) -> dict[str, str]:
    """The environment without anything that leads to the checkout."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "PYTHON", "VIRTUAL_ENV"))}
    return {**own, **more}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A fresh environment with the wheel; what the wheel depends on is that of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    done = subprocess.run(
        [*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel],
        check=False,
        capture_output=True,
        text=True,
        env=clean(),
    )
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # A path in a .pth file is searched after the environment's own packages, and no .pth file in it is read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    project = folder / "project"
    shutil.copytree(PROJECT, project)
    return Installed(project=project, python=python, packages=packages)


@dataclass(frozen=True)
class Served:
    """The project with a model, and a worker that is about to be started."""

    installed: Installed
    env: dict[str, str]

    async def working(self, *words: str, ready: str) -> subprocess.Popen[bytes]:
        """Start a worker in the project's folder, and wait until it says that it is ready."""
        log = self.installed.project / f"worker-{uuid4().hex[:6]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.installed.python.parent / words[0], *words[1:]],
                cwd=self.installed.project,
                env=self.env,
                stdout=output,
                stderr=output,
            )

        async def polls() -> bool:
            assert process.poll() is None, log.read_text()
            return ready in log.read_text()

        try:
            await eventually(polls)
        except BaseException:
            process.kill()
            raise
        return process

    async def answer(self, *words: str) -> str:
        """What the project's client prints."""
        ran = await asyncio.to_thread(self.installed.run, "client.py", *words, **self.env)
        # Threads of Temporal's SDK may abort the shutdown of the interpreter, after the client's work is done.
        assert ran.returncode in (0, -signal.SIGABRT, -signal.SIGSEGV), ran.stderr
        assert ran.stdout, ran.stderr
        return ran.stdout.strip()


def served(installed: Installed, addresses: Addresses, workspace: Path, model: ModelServer) -> Served:
    """The project's settings."""
    env = environment(settings_for(addresses, workspace, model), workspace.parent)
    return Served(installed, {name: value for name, value in env.items() if not name.startswith(("PYTHON", "VIRTUAL"))})


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == OURS
    assert {"loom/py.typed", "loom/workflows/agent_run.py", "loom/domain/core/errors.py"} <= set(names)


def test_site_packages_has_loom_and_nothing_else_of_ours(installed: Installed) -> None:
    there = {path.name for path in installed.packages.iterdir()} - {"dependencies.pth", "__pycache__"}
    assert {name for name in there if not name.endswith(".dist-info")} == OURS
    assert [name for name in there if name.endswith(".dist-info")] == [
        name for name in there if name.startswith("loom_agents-")
    ]


@pytest.mark.slow
def test_each_name_is_its_owner_s(installed: Installed) -> None:
    code = """
import json, sys
import loom, loom.client, loom.workflows.agent_run
import activities.notes, client, deploy, worker, workflows.nightly
names = ("loom", "loom.client", "loom.workflows.agent_run", "activities", "client", "deploy", "worker", "workflows")
print(json.dumps({name: sys.modules[name].__file__ for name in names}))
"""
    ran = installed.run("-c", code)
    assert ran.returncode == 0, ran.stderr
    files = {name: Path(file) for name, file in json.loads(ran.stdout).items()}
    for name, file in files.items():
        assert file.is_relative_to(installed.packages if name.startswith("loom") else installed.project), name


@pytest.mark.slow
async def test_loom_worker_serves_the_project_s_tools(
    installed: Installed, addresses: Addresses, workspace: Path
) -> None:
    async with ModelServer(script([LOOKS_UP, text('{"mark": "L 7"}')])) as model:
        project = served(installed, addresses, workspace, model)
        process = await project.working("loom", "worker", "--app", "tools:app", ready="worker_ready")
        try:
            assert await project.answer("typed") == "L 7"
        finally:
            process.terminate()
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        (result,) = [message for message in model.requests[1].messages if message["role"] == "tool"]
        assert result["content"] == "L 7 (eu-central)"


@pytest.mark.slow
async def test_the_project_s_own_worker_serves_agents_beside_its_workflows(
    installed: Installed, addresses: Addresses, workspace: Path
) -> None:
    async with ModelServer(script([LOOKS_UP, text("It is in L 7.")])) as model:
        project = served(installed, addresses, workspace, model)
        process = await project.working("python", "worker.py", ready="ready")
        try:
            assert await project.answer("nightly", f"nightly-{uuid4().hex[:8]}") == "It is in L 7. on A 1"
        finally:
            process.kill()
            process.wait()
        (result,) = [message for message in model.requests[1].messages if message["role"] == "tool"]
        assert result["content"] == "L 7 (eu-central)"


def planted_lines() -> set[int]:
    """The lines with a mistake."""
    lines = (PROJECT / "planted.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def found(output: str) -> dict[str, set[int]]:
    """The lines that a type checker complains about, by file."""
    lines: dict[str, set[int]] = {}
    for file, line in re.findall(r"^ *(?:\S*/)?(\w+\.py):(\d+)(?::\d+)?.* error", output, re.MULTILINE):
        lines.setdefault(file, set()).add(int(line))
    return lines


def complaints(project: Path, *command: str | Path) -> dict[str, set[int]]:
    """What a type checker finds in the project."""
    ran = subprocess.run([*command, "."], cwd=project, env=clean(), check=False, capture_output=True, text=True)
    return found(ran.stdout) or {ran.stdout + ran.stderr: set()}


@pytest.mark.slow
@pytest.mark.timeout(400)  # without a cache it reads every dependency first
def test_mypy_accepts_the_project_and_finds_planted_mistakes(installed: Installed, tmp_path: Path) -> None:
    mypy = (sys.executable, "-m", "mypy", "--python-executable", installed.python, "--cache-dir", tmp_path / "cache")
    assert complaints(installed.project, *mypy) == {"planted.py": planted_lines()}


@pytest.mark.slow
def test_pyright_accepts_the_project_and_finds_planted_mistakes(installed: Installed) -> None:
    pyright = (PYRIGHT, "--pythonpath", installed.python, "--level", "error")
    assert complaints(installed.project, *pyright) == {"planted.py": planted_lines()}


RUNS = """
import asyncio, json, sys
from pathlib import Path
import loom

async def main():
    settings = loom.load_settings()
    async with loom.worker(settings), loom.LoomClient.connected(settings) as client:
        result = await client.result(await client.start("Look around."))
        assert result.status in loom.RunStatus, result

asyncio.run(main())
files = {}
for name, module in list(sys.modules.items()):
    if getattr(module, "__file__", None):
        files.setdefault(str(Path(module.__file__).resolve()), []).append(name)
print(json.dumps({"names": sorted(sys.modules), "files": files}))
"""


@pytest.mark.slow
async def test_in_a_checkout_nothing_is_imported_under_two_names(addresses: Addresses, workspace: Path) -> None:
    async with ModelServer(script([text("Nothing here.")])) as model:
        env = environment(settings_for(addresses, workspace, model), workspace.parent)
        # `-c` puts the checkout itself on the path, where every bare name could be imported.
        command = [sys.executable, "-c", RUNS]
        ran = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, env=env, check=False, capture_output=True, text=True
        )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert not {"workflows", "activities", "client", "worker", "loom_domain", "deploy"} & set(seen["names"])
    ours = {file: names for file, names in seen["files"].items() if Path(file).is_relative_to(ROOT)}
    of_the_house = {file: names for file, names in ours.items() if ".venv" not in Path(file).parts}
    assert len(of_the_house) > 100
    assert {file: names for file, names in of_the_house.items() if len(names) > 1} == {}
