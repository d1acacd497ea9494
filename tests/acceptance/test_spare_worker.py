"""The spare of the embedded stack's worker: when it becomes the worker, and how it ends otherwise."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from loom.client import LoomClient
from loom.composition.settings import Settings
from loom.stack import state
from loom.stack import up_down as stack
from loom.stack.home import log_path
from loom.stack.plan import LOOM_WORKER, Plan
from loom.stack.processes import wait_until
from loom.stack.spare import Spare
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import PATIENCE, eventually
from tests.processes import command_of

WAITS = """
import os, sys, time
from loom.stack.spare import await_order, is_spare
assert is_spare()
if await_order():
    print(sorted(os.environ), repr(sys.stdin.read()), flush=True)
    time.sleep(600)
"""
SPARE = (sys.executable, "-P", "-c", WAITS)
SUPERVISES = """
import sys
from loom.stack import supervisor
from loom.stack.plan import Plan

supervisor.SETTLED = 0.0
supervisor.SPARE_PAUSE = 1.0
supervisor.Supervisor(Plan.from_json(sys.argv[1])).run(lambda _: print("ready", flush=True))
"""
WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


@pytest.fixture
def spare() -> Iterator[Spare]:
    """A process that waits for its order."""
    loaded = Spare.load(SPARE)
    assert loaded is not None
    yield loaded
    loaded.discard()


def test_an_order_gives_a_spare_its_environment_and_its_log(spare: Spare, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("of the worker before\n")
    worker = spare.become_worker({"LOOM_APP": "a:b", "PATH": "/bin"}, log)
    assert worker is not None
    assert worker.identity == state.of_pid(spare.child.pid)
    assert wait_until(lambda: log.read_text()[worker.logs_from :] == "['LOOM_APP', 'PATH'] ''\n", seconds=PATIENCE)
    assert os.getsid(spare.child.pid) == spare.child.pid
    assert {os.readlink(f"/proc/{spare.child.pid}/fd/{each}") for each in (1, 2)} == {str(log)}


def test_if_memory_runs_out_the_kernel_ends_a_spare_first_but_not_a_worker(spare: Spare, tmp_path: Path) -> None:
    score = Path(f"/proc/{spare.child.pid}/oom_score_adj")
    assert wait_until(lambda: score.read_text() == "1000\n", seconds=PATIENCE)
    assert spare.become_worker({}, tmp_path / "log") is not None
    assert wait_until(lambda: score.read_text() == Path("/proc/self/oom_score_adj").read_text(), seconds=PATIENCE)


def test_a_spare_ends_with_its_supervisor(spare: Spare) -> None:
    assert spare.child.stdin is not None
    spare.child.stdin.close()
    assert spare.child.wait(timeout=PATIENCE) == 0


def test_an_incomplete_order_is_ignored(spare: Spare) -> None:
    assert spare.child.stdin is not None
    with spare.child.stdin as pipe:
        pipe.write(b'{"environment": {"PATH": "/bi')
    assert spare.child.wait(timeout=PATIENCE) == 0


def test_a_spare_that_has_ended_or_gets_too_large_an_order_is_not_used(spare: Spare, tmp_path: Path) -> None:
    assert spare.become_worker({"LARGE": "x" * 2**20}, tmp_path / "log") is None
    assert spare.child.returncode is not None
    assert spare.become_worker({}, tmp_path / "log") is None


def test_a_spare_that_was_loaded_before_packages_changed_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    os.utime(packages, (0, 0))
    monkeypatch.setattr("loom.stack.spare._SITE_PACKAGES", (packages, tmp_path / "missing"))
    old = Spare.load(SPARE)
    assert old is not None
    (packages / "new.py").touch()
    assert old.become_worker({}, tmp_path / "log") is None
    assert not psutil.pid_exists(old.child.pid)


@dataclass(frozen=True)
class Up:
    """A stack whose supervisor loads a spare as soon as there is none, and the model of its worker."""

    plan: Plan
    supervisor: "subprocess.Popen[bytes]"
    model: ModelServer

    def worker(self) -> int | None:
        """The id of the worker's process, or None if it isn't running."""
        part = state.read(self.plan.home).living().get("worker")
        return part.pid if part else None

    async def killed_worker(self) -> int:
        """Kill the worker, and return the id of the next one."""
        killed = self.worker()
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        return await eventually(lambda: _later(pid if (pid := self.worker()) != killed else None))

    async def spare(self) -> int:
        """Return the id of the spare, once there is one."""

        def other() -> int | None:
            children = psutil.Process(self.supervisor.pid).children()
            found = [child.pid for child in children if command_of(child) == [*LOOM_WORKER]]
            return next((pid for pid in found if pid != self.worker()), None)

        return await eventually(lambda: _later(other()))


async def _later(found: int | None) -> int | None:
    return found


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Up]:
    """A running stack, without the HTTP service."""
    plan = Plan(home=tmp_path / ".loom", metrics_port=None)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TEMPORAL_"))}
    off = dict.fromkeys(("LOOM_METRICS_PORT", "LOOM_SKILLS_HOME"), "off")
    async with ModelServer(script([calls(WRITE), text("written")])) as model:
        known = {"LOOM_MODEL": "openai:scripted", "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.openai_url}
        command = (sys.executable, "-P", "-c", SUPERVISES, plan.to_json())
        with subprocess.Popen(command, env=own | off | known, cwd=tmp_path, stdout=subprocess.PIPE) as supervisor:
            try:
                assert supervisor.stdout is not None
                assert await asyncio.to_thread(supervisor.stdout.readline) == b"ready\n"
                yield Up(plan, supervisor, model)
            finally:
                await asyncio.to_thread(stack.down, plan.home)


@asynccontextmanager
async def client_of(home: Path) -> AsyncIterator[Harness]:
    """A client of the stack."""
    own = state.own_addresses(home)
    stores: dict[str, Any] = {"database_url": own["postgres"], "redis_url": own["redis"]}
    settings = Settings(TEMPORAL_ADDRESS=own["temporal"], home=home, workspace=home.parent, **stores)
    async with LoomClient.connected(settings) as client:
        yield Harness(client=client, settings=settings, workspace=home.parent)


async def test_a_spare_replaces_a_killed_worker_and_ends_with_its_supervisor(up: Up) -> None:
    async with client_of(up.plan.home) as loom:
        run_id = await loom.start(permissions={"write_file": "ask"})
        await loom.asked(run_id)
        spare = await up.spare()
        assert await up.killed_worker() == spare
        became = state.read(up.plan.home).parts["worker"]
        assert became.since is not None
        assert became.since > became.started
        await loom.client.approve(run_id, "w1")
        assert (await loom.client.result(run_id)).status == "completed"
    worker, shown = state.of_pid(spare), psutil.Process(spare)
    assert (Path(shown.cwd()), shown.nice()) == (up.plan.home.parent, psutil.Process().nice())
    files = [os.readlink(f"/proc/{spare}/fd/{number}") for number in range(3)]
    assert files == [os.devnull, *2 * [str(log_path(up.plan.home, "worker"))]]

    following = state.of_pid(await up.spare())
    up.supervisor.kill()
    assert await asyncio.to_thread(wait_until, lambda: not following.alive(), seconds=PATIENCE)
    adopted = await asyncio.to_thread(stack.up_detached, up.plan)
    assert adopted.parts["worker"].pid == spare
    assert set(await asyncio.to_thread(stack.down, up.plan.home)) == {"temporal", "redis", "postgres", "worker"}
    assert not worker.alive()


@pytest.mark.slow
async def test_a_worker_whose_spare_has_ended_is_started_anew_and_down_ends_the_spare(up: Up) -> None:
    dead = await up.spare()
    os.kill(dead, signal.SIGKILL)
    assert await up.killed_worker() != dead
    following = state.of_pid(await up.spare())
    assert following.pid != dead
    await asyncio.to_thread(stack.down, up.plan.home)
    assert not following.alive()


def test_without_the_setting_and_for_workers_of_your_own_there_is_no_spare() -> None:
    plan = Plan(home=Path())
    assert plan.has_spare
    assert not replace(plan, spare_worker=False).has_spare
    assert not replace(plan, worker=("my-worker",)).has_spare
    assert not plan.without_worker().has_spare
