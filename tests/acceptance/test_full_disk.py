"""The disk of a stack fills up in the middle of a run: the run waits, and goes on once there is room."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, text
from loom.testing.waiting import eventually
from tests.acceptance.test_stack import Loom

TURNS = 30
PRINTS_MUCH = "echo {step} >> steps; head -c 60000 /dev/urandom | base64"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 700 MB, if the user who runs the tests may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=700m", "tmpfs", folder)
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path) -> Path:
    """Write a file until there is no room left."""
    path = disk / "fill"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"0" * 65_536):
            pass
    return path


@pytest.mark.slow
async def test_a_run_waits_while_the_disk_is_full_and_loses_nothing(disk: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    def reply(request: SeenRequest) -> Reply:
        if request.turn == 2 and not (disk / "fill").exists():
            fill(disk)
        if request.turn == TURNS:
            return text("done")
        return calls(ToolUse("bash", {"command": PRINTS_MUCH.format(step=request.turn)}, f"c{request.turn}"))

    async with ModelServer(reply) as model:
        loom = Loom(disk / ".loom")
        settings = {
            "OPENAI_BASE_URL": model.openai_url,
            "OPENAI_API_KEY": "test",
            "LOOM_MODEL": "openai:scripted",
            "LOOM_WORKSPACE": str(workspace),
            "LOOM_MAX_MODE": "bypass",
        }

        async def command(*words: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(loom.run, *words, **settings)

        try:
            up = await command("up", "--detach")
            assert up.returncode == 0, up.stderr
            await command("run", "go", "--id", "full", "--mode", "bypass", "--detach")

            async def stands_still() -> bool:
                before = model.count
                await asyncio.sleep(5)  # a slow machine seems to stand still, too: then the test proves less
                return (disk / "fill").exists() and model.count == before

            await eventually(stands_still)
            assert model.count < TURNS
            assert "free some space" in (await command("doctor")).stdout

            (disk / "fill").unlink()
            ended = await command("watch", "full", "--json")
            assert json.loads(ended.stdout.splitlines()[-1])["status"] == "completed", ended
        finally:
            await command("down")
    assert (workspace / "steps").read_text().split() == [str(step) for step in range(TURNS)]
