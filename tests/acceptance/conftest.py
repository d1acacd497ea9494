"""Workers that a test may kill, or one beside the test, on the session's servers. The wheel of this checkout."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from loom.stack import up_down as stack
from loom.stack.plan import Plan
from loom.testing.fork_server import ForkServer
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import ModelServer
from loom.testing.worker_processes import Workers, mortal
from tests import forked_commands
from tests.integration.workflows.conftest import Working, _patient_with_workers, working

__all__ = ["Killable", "Working", "_patient_with_workers", "killable", "working"]

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")

BEGUN: Final[list[asyncio.subprocess.Process]] = []
"""The commands that the current test has begun. A fixture ends those that go on, so that a failure stays one."""

Killable: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="session")
def loom_forks() -> ForkServer:
    """The server that forks this process' commands. It replaces the plugin's, which forks workers alone."""
    return forked_commands.server()


@pytest.fixture
async def killable(addresses: Addresses, workspace: Path, loom_forks: ForkServer) -> AsyncIterator[Killable]:
    """`loom, model, workers = await killable(script)`: worker processes until the test ends; its runs are replayed."""
    async with AsyncExitStack() as stack:

        async def begin(script: Any, **settings: Any) -> tuple[Harness, ModelServer, Workers]:
            return await stack.enter_async_context(mortal(addresses, workspace, script, forks=loom_forks, **settings))

        yield begin


@pytest.fixture(autouse=True)
async def _commands_end() -> AsyncIterator[None]:
    """End the commands that a failed test has left running, and close their pipes."""
    yield
    while BEGUN:
        process = BEGUN.pop()
        with suppress(ProcessLookupError):  # it has just ended by itself
            process.kill()
        if process.returncode is None:
            await process.communicate()


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[tuple[Path, Addresses]]:
    """Servers that no other test needs, looked after by a supervisor as with `loom up`."""
    home = tmp_path / ".loom"
    yield home, servers_of(home)
    stack.down(home)


def servers_of(home: Path) -> Addresses:
    """Start the servers of a home, without a worker."""
    parts = stack.up_detached(Plan(home=home, worker=None)).parts
    address = {name: part.address or "" for name, part in parts.items()}
    return Addresses(temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui="")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT],
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (file,) = folder.glob("*.whl")
    return file
