"""The real servers that tests stand on, started once a session from the same packages as `loom up`."""

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog
from hypothesis import HealthCheck, settings
from temporalio.worker._workflow import _WorkflowWorker

from loom.activities.adapters.postgres.database import Database
from loom.testing.harness import Addresses
from tests.databases import fresh_database
from tests.nats_server import NatsServer

# How long an example takes says nothing on a machine that others use, too; benches measure.
settings.register_profile("loom", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loom")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell lets what it starts in the background ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

LOOM = str(Path(sys.executable).parent / "loom")


@pytest.fixture(scope="session")
def addresses(loom_stack: Addresses) -> Addresses:
    """A Temporal server, a Redis and a Postgres of this test session."""
    return loom_stack


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server.url
    server.kill()


@pytest.fixture(scope="module", autouse=True)
def _default_logs() -> Iterator[None]:
    """Let each file begin with structlog's defaults: commands that run in this process configure it for good.

    Tracebacks are plain, because the default form with the values of all locals can hold the event loop for a second.
    """
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **given: configure(**{**given, "cache_logger_on_first_use": False})
        )
        structlog.reset_defaults()
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient_deadlock_detector() -> Iterator[None]:
    """Let a workflow task of this process take 20 seconds instead of 2.

    On a busy machine, the task's thread may wait for a processor for more than two seconds. Temporal then raises its
    deadlock error in whatever code the thread is running, even in a callback of the garbage collector, where nothing
    can catch it. Workers in processes of their own keep the two seconds.
    """
    build = _WorkflowWorker.__init__

    def build_patient(worker: Any, *args: Any, **kwargs: Any) -> None:
        build(worker, *args, **kwargs)
        assert worker._deadlock_timeout_seconds == 2
        worker._deadlock_timeout_seconds = 20  # the public setting only turns it off

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_WorkflowWorker, "__init__", build_patient)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands remember the runs that they start in a folder of this session, and not in that of whoever tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder for an agent to work in."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
async def url(addresses: Addresses) -> AsyncIterator[str]:
    """A database of the module's own."""
    async with fresh_database(addresses.database) as url:
        yield url


@pytest.fixture(scope="module")
async def database(url: str) -> AsyncIterator[Database]:
    """The same as Loom uses it."""
    async with aclosing(Database(url)) as database:
        yield database


@pytest.fixture
def session() -> str:
    """A session that nobody else has."""
    return uuid4().hex
