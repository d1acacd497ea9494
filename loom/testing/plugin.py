"""Fixtures for pytest, which loads this module if Loom is installed. Nothing starts before a test uses a fixture.

`loom_worker`, `loom_processes` and `loom_time_skipping` return functions for `async with`, so they work with any plugin
that runs asynchronous tests.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from loom.testing.fixtures import LoomProcesses, LoomTimeSkipping, LoomWorker
    from loom.testing.fork_server import ForkServer
    from loom.testing.harness import Addresses


@pytest.fixture(scope="session")
def loom_stack(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Addresses]":
    """The addresses of a Temporal server, a Postgres and a Redis that `loom up` started for this test session."""
    from loom.testing.stack import running_stack  # noqa: PLC0415 - pytest imports this module at each start

    with running_stack(tmp_path_factory.mktemp("stack") / ".loom") as addresses:
        yield addresses


@pytest.fixture
def loom_worker(loom_stack: "Addresses", tmp_path: Path) -> "LoomWorker":
    """`async with loom_worker(replies, app=app) as (loom, model)`: a worker in the test's own process.

    `replies` is a list with one reply for each turn, or a function from a `SeenRequest` to a `Reply`. Any setting of
    Loom can follow by name. When the block ends, the history of each run is replayed.
    """
    from loom.testing.harness import harness  # noqa: PLC0415

    return partial(harness, loom_stack, _workspace(tmp_path))


@pytest.fixture(scope="session")
def loom_forks() -> "Iterator[ForkServer]":
    """A process that has imported a worker's modules, and forks for each worker of `loom_processes`."""
    from loom.testing.fork_server import fork_server  # noqa: PLC0415

    with fork_server() as forks:
        yield forks


@pytest.fixture
def loom_processes(loom_stack: "Addresses", loom_forks: "ForkServer", tmp_path: Path) -> "LoomProcesses":
    """`async with loom_processes(replies, app="module:app") as (loom, model, workers)`: a worker to kill and restart.

    It runs in a process of its own. `app` is therefore a name: `package.module:app` or `path/to/file.py:app`.
    """
    from loom.testing.worker_processes import with_worker  # noqa: PLC0415

    return partial(with_worker, loom_stack, _workspace(tmp_path), forks=loom_forks)


@pytest.fixture
def loom_time_skipping(tmp_path: Path) -> "LoomTimeSkipping":
    """`async with loom_time_skipping(replies, app=app) as (loom, model, time)`: days of waiting take milliseconds.

    Temporal's test server skips the time while nothing runs. The worker has no Postgres and no Redis, so there are no
    events, no memory and no effect ledger.
    """
    from loom.testing.time_skipping import time_skipping  # noqa: PLC0415

    return partial(time_skipping, _workspace(tmp_path))


def _workspace(folder: Path) -> Path:
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    return workspace
