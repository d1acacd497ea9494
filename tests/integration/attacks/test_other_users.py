"""Another user of the same machine, against a real stack of `loom up`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from loom.client import LoomClient
from loom.composition.settings import Settings
from loom.stack import state, up_down
from loom.testing.waiting import eventually

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
    pytest.mark.timeout(300),
]

ANOTHER_USER = "54321"
LOOM = str(Path(sys.executable).parent / "loom")
STRANGER = str(Path(__file__).with_name("other_user.py"))
NO_FILES = dict.fromkeys(("the key", "the addresses", "the server's network"), "PermissionError")


@dataclass(frozen=True)
class Stack:
    """A stack with a worker, in folders that everybody may enter, so that only Loom itself keeps others out."""

    home: Path
    workspace: Path

    def up(self, *words: str, **settings: str) -> None:
        """Start it."""
        foreign = ("LOOM_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        off = dict.fromkeys(("LOOM_SKILLS_HOME", "LOOM_SERVE_PORT"), "off")
        env = {**own, **off, "LOOM_HOME": str(self.home), "LOOM_MODEL": "demo", **settings}
        done = subprocess.run(
            [LOOM, "up", "--detach", *words], env=env, cwd=self.workspace, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        self.home.chmod(0o755)

    @property
    def settings(self) -> Settings:
        """The owner's settings."""
        address = state.own_addresses(self.home)
        return Settings(
            home=self.home,
            TEMPORAL_ADDRESS=address["temporal"],
            database_url=address["postgres"],
            redis_url=address["redis"],
        )

    def attacked(self, run_id: str) -> dict[str, str]:
        """What the attempts of another user came to."""
        pid = state.read(self.home).parts["temporal"].pid
        words = (self.settings.temporal_address, "loom", run_id, "/var/tmp", str(self.home), str(pid))
        done = subprocess.run(
            [sys.executable, STRANGER, ANOTHER_USER, *words], capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def stack() -> Iterator[Stack]:
    """A stack that isn't started yet. Pytest's own folders are closed to others, which would prove nothing."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        home, workspace = folder / "home", folder / "workspace"
        workspace.mkdir()
        (workspace / "a.py").write_text("password = 'x'\n")
        yield Stack(home, workspace)
        up_down.down(home)


async def waiting_run(loom: LoomClient, workspace: Path) -> str:
    """A run of the owner's that waits for an approval."""
    run_id = await loom.start("Audit this folder and write report.md", workspace=str(workspace))

    async def asked() -> bool:
        return bool((await loom.status(run_id))["pending_approvals"])

    await eventually(asked)
    return run_id


@pytest.mark.slow
async def test_nobody_else_reaches_a_private_stack(stack: Stack) -> None:
    stack.up("--private")
    async with LoomClient.connected(stack.settings) as loom:
        run_id = await waiting_run(loom, stack.workspace)

        found = stack.attacked(run_id)

        assert found == {**NO_FILES, "the socket": "PermissionError", "the server": "RuntimeError"}
        assert [run.run_id for run in await loom.list()] == [run_id]
        assert len((await loom.status(run_id))["pending_approvals"]) == 1
        await loom.abort(run_id)


@pytest.mark.slow
async def test_others_reach_an_open_stack_and_are_refused_where_signatures_are_required(stack: Stack) -> None:
    stack.up(LOOM_REQUIRE_SIGNED="on")
    async with LoomClient.connected(stack.settings) as loom:
        run_id = await waiting_run(loom, stack.workspace)

        found = stack.attacked(run_id)

        refused = ("a run without approvals", "a run in another folder", "approval", "other rules", "a message")
        expected = {**NO_FILES, "the socket": "FileNotFoundError", "the server": "done"}
        assert found == {**expected, **dict.fromkeys(refused, "BadRequest")}
        assert len((await loom.status(run_id))["pending_approvals"]) == 1
        assert not (stack.workspace / "report.md").exists()
        await loom.approve(run_id)
