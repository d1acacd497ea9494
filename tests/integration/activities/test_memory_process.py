"""The process that writes a worker's memory: real processes, a real Redis and a real Postgres."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
import pytest
import structlog

from loom.composition.memory_process import MemoryProcess, memory_process
from loom.domain.core.tasks import Action
from loom.domain.memory.layers import MemorySettings
from loom.testing.waiting import eventually
from tests.databases import fresh_database

from .conftest import PostgresServer, RedisServer
from .test_memory_writer import ids, publish, stored, tasks, waiting

WORKER: Final = """
import asyncio, sys
from loom.composition.memory_process import MemoryProcess, memory_process
from loom.domain.memory.layers import MemorySettings

async def main():
    given = MemoryProcess(redis_url=sys.argv[1], database_url=sys.argv[2], limits=MemorySettings())
    async with memory_process(given, print):
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[str]:
    async with fresh_database(postgres.url, "template1") as url:
        yield url


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loom.composition.memory_process.LOOK_EVERY", 0.05)


@dataclass
class Beside:
    """A memory process beside the test."""

    ended: list[None] = field(default_factory=list)

    async def process(self, *, other_than: int = 0) -> psutil.Process:
        """Return the process as soon as it runs."""

        async def look() -> psutil.Process | None:
            found = [each for each in _memory_processes(psutil.Process()) if each.pid != other_than]
            return found[0] if found else None

        return await eventually(look)


def _memory_processes(parent: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in parent.children():
        with suppress(psutil.Error):
            if "loom.composition.memory_process" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


@asynccontextmanager
async def beside(redis: RedisServer, database: str, **given: Any) -> AsyncIterator[Beside]:
    told = Beside()
    settings = MemoryProcess(redis_url=redis.url, database_url=database, limits=MemorySettings(), **given)
    async with memory_process(settings, lambda: told.ended.append(None)):
        yield told
    assert _memory_processes(psutil.Process()) == []


async def test_tasks_are_stored_the_worker_hears_of_ended_runs_and_without_tasks_there_is_no_process(
    mortal_redis: RedisServer, database: str
) -> None:
    said, last, more = tasks(20), tasks(1, Action.COMPLETE), tasks(5)
    async with beside(mortal_redis, database, idle=1.0) as memory:
        await publish(mortal_redis.url, said)
        assert await stored(database, 20) == ids(said)
        assert memory.ended == []
        await publish(mortal_redis.url, last)
        await eventually(lambda: _as_awaitable(memory.ended or None))
        assert await stored(database, 21) == ids([*said, *last])
        await eventually(lambda: _as_awaitable(not _memory_processes(psutil.Process())))
        assert await waiting(mortal_redis.url) == 0
        await publish(mortal_redis.url, more)
        assert await stored(database, 26) == ids([*said, *last, *more])


async def test_a_process_that_is_killed_is_started_again_and_stores_each_task_once(
    mortal_redis: RedisServer, database: str
) -> None:
    first, second = tasks(50), tasks(50)
    with structlog.testing.capture_logs() as logs:
        async with beside(mortal_redis, database) as memory:
            await publish(mortal_redis.url, first)
            await stored(database, 50)
            killed = await memory.process()
            killed.kill()
            await publish(mortal_redis.url, second)
            assert await stored(database, 100) == ids([*first, *second])
    assert [log["why"] for log in logs if log["event"] == "memory_writer_died"] == ["exit code -9"]


async def test_a_process_that_cannot_be_started_now_is_started_later(
    mortal_redis: RedisServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tasks(5)
    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/such/python")
        async with beside(mortal_redis, database):
            await publish(mortal_redis.url, said)
            await eventually(
                lambda: _as_awaitable([log for log in logs if log["event"] == "memory_writer_died"] or None)
            )
            patch.undo()
            assert await stored(database, 5) == ids(said)


async def test_the_process_is_small_and_ends_when_its_worker_is_killed(
    mortal_redis: RedisServer, database: str
) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, mortal_redis.url, database])
    try:
        await publish(mortal_redis.url, tasks(5))
        await stored(database, 5)
        (process,) = _memory_processes(psutil.Process(worker.pid))
        assert [each.path for each in process.memory_maps() if "temporalio" in each.path] == []
    finally:
        worker.kill()
        worker.wait()
    await eventually(lambda: _as_awaitable(not process.is_running()))


async def test_what_the_process_has_to_say_is_in_the_worker_s_log(mortal_redis: RedisServer, database: str) -> None:
    wrong = f"{database}_that_does_not_exist"
    with structlog.testing.capture_logs() as logs:
        async with beside(mortal_redis, wrong, log_level="DEBUG"):
            await publish(mortal_redis.url, tasks(5))
            await eventually(lambda: _as_awaitable([log for log in logs if log["event"] == "waiting"] or None))
            assert await eventually(lambda: _as_awaitable("error connecting in 'memory'" in json.dumps(logs)))


async def _as_awaitable(value: Any) -> Any:
    return value
