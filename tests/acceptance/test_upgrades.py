"""An upgrade: `loom replay`, then two versions of the workers side by side, as processes. It takes two minutes."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from temporalio.common import WorkerDeploymentVersion

from loom.activities.adapters.temporal.deployments import TemporalDeployments
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunStatus
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import Process, Workers
from tests.acceptance.conftest import Killable, Working
from tests.acceptance.test_command_line import LOOM, Cli, command_line
from tests.deployments import served
from tests.trees import by_task

CHECKOUT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("loom", "loom_domain", "activities", "workflows")
FILES: Final = ("client.py", "worker.py", "pyproject.toml")
LOOP: Final = "        while not isinstance(action := next_action(self._state), Finish):\n"
WRITE: Final = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
LOOK: Final = calls(ToolUse("list_dir", {"path": "."}))
STORIES: Final = by_task(
    {
        "write it": [calls(WRITE), text("written")],
        "look often": [calls(WRITE), *([LOOK] * 20), text("seen")],
        "answer": [text("done")],
    }
)


@dataclass(frozen=True)
class Deployment:
    """A worker deployment of a test's own."""

    loom: Harness
    workers: Workers
    cli: Cli
    name: str

    async def start(self, build: str) -> Process:
        """Start a worker with a version."""
        return await self.workers.start(
            LOOM_DEPLOYMENT=self.name, LOOM_BUILD=build, LOOM_ROTATE_AFTER_EVENTS="100", LOOM_LOOP_WINDOW="0"
        )

    async def promote(self, build: str) -> None:
        """Make a version current."""
        await TemporalDeployments(self.loom.client.temporal).promote(WorkerDeploymentVersion(self.name, build))

    async def versions(self) -> dict[str, tuple[str, int]]:
        """The status of each version and how many runs are on it."""
        found = await TemporalDeployments(self.loom.client.temporal).versions()
        return {each.build: (each.status, each.runs) for each in found if each.deployment == self.name}


async def deployed(killable: Killable) -> Deployment:
    """A deployment whose version 1 is current."""
    loom, _, workers = await killable(STORIES)
    deployment = Deployment(loom, workers, command_line(loom), f"test-{uuid4().hex[:8]}")
    await deployment.start("1")
    await deployment.promote("1")
    return deployment


@pytest.mark.slow
async def test_runs_finish_on_the_version_that_they_began_on_or_move_when_they_continue_as_new(
    killable: Killable,
) -> None:
    deployment = await deployed(killable)
    loom = deployment.loom
    short, long = await loom.start("write it"), await loom.start("look often", max_turns=30)
    await loom.asked(short)
    await loom.asked(long)

    await deployment.start("2")
    await deployment.promote("2")
    new = await loom.run("answer")
    for run_id in (short, long):
        await loom.client.approve(run_id, "w1")

    results = [await loom.client.result(run_id) for run_id in (short, long)]
    assert [(each.status, each.output) for each in (*results, new)] == [
        (RunStatus.COMPLETED, output) for output in ("written", "seen", "done")
    ]
    assert served(await loom.histories(short)) == ["1"]
    assert served(await loom.histories(loom.started[-1])) == ["2"]
    first, *rest = served(await loom.histories(long))
    assert (first, set(rest)) == ("1", {"2"})


@pytest.mark.slow
async def test_a_drained_version_has_no_runs_and_its_workers_can_stop(killable: Killable) -> None:
    deployment = await deployed(killable)
    loom, cli, name = deployment.loom, deployment.cli, deployment.name
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    with pytest.raises(BadRequest, match="no other version is current"):
        await anext(TemporalDeployments(loom.client.temporal).drain(WorkerDeploymentVersion(name, "1")))
    old, _ = deployment.workers.started[0], await deployment.start("2")
    assert (await cli("deployments", "promote", name, "2", "--json")).json["status"] == "current"

    async def counted() -> bool:
        return await deployment.versions() == {"1": ("draining", 1), "2": ("current", 0)}

    await eventually(counted)
    drained = await cli("deployments", "drain", name, "1")
    assert (drained.code, drained.out) == (0, f"Nothing is left on {name} 1: you can stop its workers.\n")
    assert f"1 workflow left on {name} 1" in drained.err
    await deployment.workers.kill(old)
    await loom.client.approve(run_id, "w1")

    assert (await loom.client.result(run_id)).output == "written"
    assert served(await loom.histories(run_id)) == ["1", "2"]
    told = (await cli("deployments")).out
    assert [line.split()[1:3] for line in told.splitlines() if line.startswith(name)] == [
        ["2", "current"],
        ["1", "draining"],
    ]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A copy of the code in which a run sleeps before its first action, which no recorded run has done."""
    copy = tmp_path / "broken"
    copy.mkdir()
    for name in FOLDERS:
        shutil.copytree(CHECKOUT / name, copy / name, symlinks=True)
    for name in FILES:
        shutil.copy(CHECKOUT / name, copy)
    loop = copy / "workflows" / "agent_run.py"
    code = loop.read_text()
    assert LOOP in code
    loop.write_text(code.replace(LOOP, f"        await workflow.sleep(1)\n{LOOP}"))
    return copy


async def test_a_change_that_breaks_runs_is_found_before_it_is_deployed(working: Working, broken: Path) -> None:
    loom, _ = await working(STORIES, replay=False)  # the command does it
    run_id = await loom.start("write it" + " now" * 100_000)  # a payload that is stored outside history
    await loom.asked(run_id)

    good = await command_line(loom)("replay", run_id)
    bad = await asyncio.create_subprocess_exec(
        *(LOOM, "replay", "--all", "--json"), env={**command_line(loom).env, "PYTHONPATH": str(broken)}, stdout=PIPE
    )
    told = json.loads((await bad.communicate())[0])

    assert (good.code, good.out) == (0, "1 history replayed without an error\n")
    [failed] = [each for each in told["histories"] if each["run_id"] == run_id]
    assert (bad.returncode, told["failed"] >= 1, failed["workflow"]) == (1, True, "AgentRun")
    assert "Nondeterminism" in failed["error"]
    await loom.client.approve(run_id, "w1")
    assert (await loom.client.result(run_id)).output == "written", "a replay has no effect on the run"


@pytest.mark.slow
def test_a_change_that_breaks_runs_is_found_by_the_recorded_histories(broken: Path) -> None:
    for folder in ("tests/replay", "tests/unit/replay"):
        shutil.copytree(CHECKOUT / folder, broken / folder)
    for package in ("tests", "tests/unit"):
        (broken / package / "__init__.py").touch()

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/replay", "-k", "parallel"],
        cwd=broken,
        env={**os.environ, "PYTHONPATH": str(broken)},
        check=False,
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, "Nondeterminism" in ran.stdout) == (1, True), ran.stdout
