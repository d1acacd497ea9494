"""The real servers that tests stand on, and patience with a busy machine."""

import fcntl
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, settings
from psycopg.sql import SQL, Identifier
from temporalio.worker._workflow import _WorkflowWorker

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.redis import stream
from loom.activities.adapters.redis.connection import RedisConnection
from loom.domain.core.search_attributes import SEARCH_ATTRIBUTES
from loom.stack.postgres import admin_address
from loom.testing.harness import PATIENT_WITH_REDIS, Addresses
from loom.testing.waiting import PATIENCE
from tests.databases import TEMPLATE, allow_databases, fresh_database
from tests.isolation import pytest_runtest_protocol
from tests.nats_server import NatsServer

__all__ = ["pytest_runtest_protocol"]

# How long an example takes says nothing on a machine that others use, too; benches measure.
QUICK = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", QUICK)
settings.register_profile("long", QUICK, max_examples=1000)  # `make test-slow`
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell lets what it starts in the background ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

LOOM = str(Path(sys.executable).parent / "loom")


def _stack(config: pytest.Config) -> Path:
    """The home of the session's servers, which is the same in all of its test processes."""
    folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # has no public name
    return (folder.parent if hasattr(config, "workerinput") else folder) / "stack" / ".loom"


def _loom(home: Path, *words: str) -> str:
    env = {**os.environ, "LOOM_HOME": str(home), "GOGC": "400"}  # Temporal's server collects its garbage less often
    done = subprocess.run([LOOM, *words], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _namespace(address: str, name: str) -> str:
    """A new Namespace, once the server knows it and the search attributes of runs."""

    def temporal(*words: str) -> bool:
        command: list[str | Path] = [
            Path(sys.executable).with_name("temporal"),
            *words,
            "--address",
            address,
            "--namespace",
            name,
        ]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    kinds = [word for attribute, kind in SEARCH_ATTRIBUTES.items() for word in ("--name", attribute, "--type", kind)]
    steps = (
        ("operator", "namespace", "create", "--retention", "1d"),
        ("operator", "search-attribute", "create", *kinds),
        ("workflow", "count", "--query", "LoomTenant = 'known'"),
    )
    for step in steps:
        deadline = time.monotonic() + PATIENCE
        while not temporal(*step):
            assert time.monotonic() < deadline, step
            time.sleep(0.1)
    return name


@pytest.fixture(scope="session")
def process_number(worker_id: str) -> int:
    """The number of this test process, from 0."""
    return int(worker_id.removeprefix("gw")) if worker_id.startswith("gw") else 0


@pytest.fixture(scope="session")
def loom_stack(pytestconfig: pytest.Config, process_number: int) -> Addresses:
    """A Temporal server, a Redis and a Postgres for all processes of this test session.

    The first process that needs them starts them. They end with the session. Each process has a Namespace and databases
    of its own, so that it lists no runs of others, its handlers don't hear of them, and no tenant of the same name pays
    for them.
    """
    home = _stack(pytestconfig)
    home.parent.mkdir(exist_ok=True)
    told = home.parent / "up.json"
    with (home.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            told.write_text(_loom(home, "up", "--detach", "--no-worker", "--json"))
        parts = json.loads(told.read_text())["parts"]
        allow_databases(admin_address(home, urlsplit(parts["postgres"]["address"]).port or 0))
    database, name = parts["postgres"]["address"], f"process_{process_number}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(TEMPLATE)))
    return Addresses(
        temporal=parts["temporal"]["address"],
        namespace=_namespace(parts["temporal"]["address"], f"process-{process_number}"),
        database=urlsplit(database)._replace(path=f"/{name}").geturl(),
        redis=urlsplit(parts["redis"]["address"])._replace(path=f"/{process_number % 8}").geturl(),
        ui=parts["temporal"]["ui"],
        home=home,
    )


@pytest.fixture(scope="session")
def addresses(loom_stack: Addresses) -> Addresses:
    """The same servers, of which a module may have its own."""
    return loom_stack


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NATS server of this test process."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server.url
    server.kill()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the session's servers, after all of its processes have ended."""
    if not hasattr(config, "workerinput") and (home := _stack(config)).exists():
        _loom(home, "down")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect the tests without collecting garbage: hardly any of what is made then ever becomes garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """Turn off what gives up because a machine is busy. A test that is about giving up says when.

    Temporal's deadlock detector raises its error in whatever code a workflow task of two seconds is running, even in
    a callback of the garbage collector, where nothing can catch it.
    """
    build = _WorkflowWorker.__init__

    def build_patient(worker: Any, *args: Any, **kwargs: Any) -> None:
        build(worker, *args, **kwargs)
        assert worker._deadlock_timeout_seconds == 2
        worker._deadlock_timeout_seconds = None  # the public setting, `debug_mode`, also runs tasks on another thread

    assert RedisConnection.__init__.__kwdefaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_WorkflowWorker, "__init__", build_patient)
        patch.setitem(RedisConnection.__init__.__kwdefaults__, "answer_within", PATIENT_WITH_REDIS)
        # Of those who follow a run: `watch` would else tell its status now and then in the place of its events.
        patch.setattr(stream, "_ANSWER_SECONDS", PATIENT_WITH_REDIS)
        yield


@pytest.fixture(scope="module", autouse=True)
def _default_logs() -> Iterator[None]:
    """Let each file begin with the defaults of structlog and logging: commands in this process configure them for good.

    Tracebacks are plain, because the default form with the values of all locals can hold the event loop for a second.
    """
    configure = structlog.configure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            structlog, "configure", lambda **given: configure(**{**given, "cache_logger_on_first_use": False})
        )
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("loom").setLevel(logging.NOTSET)
        structlog.reset_defaults()
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])
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
