"""`pip install loom-agents` in a fresh environment: the client, with temporalio and pydantic alone."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from loom.testing.model_server import ToolUse, calls, script, text
from tests.acceptance.conftest import PIP, Working
from tests.hidden_packages import THIN_CLIENT

BROUGHT: Final = {"annotated-types", "nexus-rpc", "protobuf", "pydantic-core", "types-protobuf", "typing-extensions"}
"""What temporalio and pydantic require, besides `typing-inspection`."""

CLIENT: Final = """
import asyncio, json, sys
from pydantic import BaseModel
from loom import LoomClient, Polled

class Review(BaseModel):
    file: str
    stars: int

async def main(workspace):
    async with LoomClient.connected() as loom:
        run_id = await loom.start("Review the code.", workspace=workspace, output=Review)
        seen, approved = [], set()
        async for event in loom.watch(run_id):
            assert isinstance(event, Polled), event
            status = event.status["status"]
            seen += [status] if seen[-1:] != [status] else []
            for pending in event.status.get("pending_approvals", ()):
                if pending["call_id"] not in approved:
                    approved.add(pending["call_id"])
                    await loom.approve(run_id, pending["call_id"], digest=pending["digest"], by="anna")
        result = await loom.result(run_id, output=Review)
        large = bytes(range(256)) * 3000  # the worker would store it in Postgres, which this client can't reach
        await loom.files.write(run_id, "large.bin", large, by="anna")
        assert (await loom.files.read(run_id, "large.bin")).data == large
        print(json.dumps({"seen": seen, "why": event.why, "review": result.structured_output.model_dump()}))

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("thin") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    install: list[str | Path] = [*PIP, "--python", python, "install", "--only-binary", ":all:", wheel]
    done = subprocess.run(install, check=False, capture_output=True, text=True, env=clean())
    assert done.returncode == 0, done.stderr
    return python


def clean(**more: str) -> dict[str, str]:
    """The environment without anything that leads to the checkout or to other servers."""
    foreign = ("LOOM_", "TEMPORAL_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | more


def test_it_brings_temporalio_and_pydantic_and_what_they_require(python: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "list", "--format", "json"]
    listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=clean()).stdout)
    names = {each["name"].replace("_", "-").lower() for each in listed}
    assert names == {"loom-agents", "temporalio", "pydantic", "typing-inspection", *BROUGHT}


async def test_it_starts_watches_and_approves_a_run(
    python: Path, working: Working, tmp_path_factory: pytest.TempPathFactory
) -> None:
    writes = calls(ToolUse("write_file", {"path": "review.md", "content": "Fine."}))
    loom, _ = await working(script([writes, text('{"file": "review.md", "stars": 4}')]))
    servers = {
        "TEMPORAL_ADDRESS": loom.settings.temporal_address,
        "TEMPORAL_NAMESPACE": loom.settings.temporal_namespace,
        "LOOM_TASK_QUEUE": loom.settings.task_queue,
    }
    program: list[str | Path] = [python, "-c", THIN_CLIENT + CLIENT, loom.workspace]
    ran = await asyncio.to_thread(
        subprocess.run,
        program,
        cwd=tmp_path_factory.mktemp("elsewhere"),  # not beside the stack of the worker, which has a key
        env=clean(**servers),
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])  # the SDK warns of large payloads before
    assert told["review"] == {"file": "review.md", "stars": 4}
    assert "waiting_for_approval" in told["seen"]
    assert told["seen"][-1] == "completed"
    assert told["why"] == "no Redis is configured: set LOOM_REDIS_URL"
    assert (loom.workspace / "review.md").read_text() == "Fine."


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            "from loom import LoomApp",
            "ImportError: LoomApp needs the package structlog: pip install 'loom-agents[worker]'",
        ),
        (
            "import loom; loom.load_settings",
            "ImportError: load_settings needs the package dotenv: pip install 'loom-agents[worker]'",
        ),
    ],
)
def test_a_name_that_needs_more_says_what(python: Path, program: str, said: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [python, "-c", program], check=False, capture_output=True, text=True, env=clean(), cwd=tmp_path
    )
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, said)


def test_the_command_says_what_it_needs(python: Path) -> None:
    ran = subprocess.run([python.parent / "loom", "up"], check=False, capture_output=True, text=True, env=clean())
    said = "loom: the `loom` command needs the package typer: pip install 'loom-agents[worker]'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", said)


CONNECTS: Final = """
import asyncio
from loom import LoomClient, errors

async def main():
    try:
        async with LoomClient.connected():
            pass
    except errors.LoomError as error:
        print(type(error).__name__, error.message)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"TEMPORAL_ADDRESS": "localhost:1", "LOOM_REDIS_URL": "redis://localhost"},
            "BadRequest LOOM_REDIS_URL needs the package redis: pip install 'loom-agents[redis]'",
        ),
        (
            {"TEMPORAL_ADDRESS": "localhost:1", "LOOM_DATABASE_URL": "postgresql://localhost/loom"},
            "BadRequest LOOM_DATABASE_URL needs the package psycopg: pip install 'loom-agents[postgres]'",
        ),
        (
            {},
            "UnreachableError no Temporal server is configured: set TEMPORAL_ADDRESS to the address of a server."
            " To find the stack of `loom up`, pip install 'loom-agents[worker]'",
        ),
    ],
    ids=["redis", "postgres", "no address"],
)
def test_a_server_whose_package_is_missing_is_not_ignored(
    python: Path, environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [python, "-c", CONNECTS], check=True, capture_output=True, text=True, env=clean(**environment), cwd=tmp_path
    )
    assert ran.stdout.strip() == said
