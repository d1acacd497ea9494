"""The memory writer on a real Redis and a real Postgres, both of which die under it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import pytest
import structlog

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import RedisInbox
from loom.activities.adapters.redis.stream import BUS, RedisStream
from loom.activities.bus import Delivery
from loom.activities.memory.writer import GROUP, MemoryWriter
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.domain.core.tasks import SHOWN_ONLY, Action, Task
from loom.testing.waiting import eventually
from tests.databases import fresh_database, rows

from .conftest import PostgresServer, RedisServer

AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
STORED: Final = "SELECT task_id FROM loom_memory_tasks ORDER BY task_id"


def tasks(count: int, action: Action = Action.MESSAGE) -> list[Task]:
    run_id = uuid4().hex
    return [
        Task(
            task_id=f"{run_id}/n{number:04}/{action}",
            run_id=run_id,
            root_run_id=run_id,
            session_id=run_id,
            action=action,
            created_at=AT,
            parameters={"text": f"what was said in {number}"},
        )
        for number in range(count)
    ]


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[str]:
    async with fresh_database(postgres.url, "template1") as url:
        yield url


@asynccontextmanager
async def writer(redis_url: str, database_url: str, **given: Any) -> AsyncIterator[None]:
    """A memory writer beside the body."""
    database = Database(database_url, name="writer")
    inbox = RedisInbox(RedisConnection(redis_url), GROUP, block=0.2, **given)
    async with aclosing(database), aclosing(inbox):
        running = asyncio.create_task(MemoryWriter(inbox, PostgresMemory(database)).run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})


async def publish(redis_url: str, published: Sequence[Task]) -> None:
    """As activities do, who try once; here until it is there."""
    async with aclosing(RedisStream(RedisConnection(redis_url))) as stream:

        async def look() -> bool | None:
            try:
                return await stream.publish(published)
            except StreamUnavailable:
                return None

        assert await eventually(look)


async def stored(database: str, count: int) -> list[str]:
    """The ids that memory has, as soon as it has that many."""

    async def look() -> list[str] | None:
        try:
            ids = [task_id for (task_id,) in await rows(database, STORED)]
        except Exception:  # noqa: BLE001 - not there yet
            return None
        return ids if len(ids) >= count else None

    return await eventually(look)


async def waiting(redis_url: str) -> int:
    """How many tasks are taken and not done."""
    async with aclosing(RedisConnection(redis_url)) as link:
        groups: Any = await link.call(lambda redis: redis.xinfo_groups(BUS))
    return sum(group["pending"] for group in groups)


def ids(published: Sequence[Task]) -> list[str]:
    return sorted(task.task_id for task in published)


async def test_every_task_is_kept_once_by_however_many_writers(mortal_redis: RedisServer, database: str) -> None:
    published = tasks(450)
    shown = [task for action in SHOWN_ONLY for task in tasks(3, action)]
    async with writer(mortal_redis.url, database), writer(mortal_redis.url, database):
        for start in range(0, 450, 50):
            await publish(mortal_redis.url, published[start : start + 50])
        await publish(mortal_redis.url, published[:100])
        for task in shown:
            await publish(mortal_redis.url, [task])
        assert await stored(database, 450) == ids(published)
    assert await waiting(mortal_redis.url) == 0


async def test_what_was_taken_by_a_writer_that_died_is_kept_by_the_next(
    mortal_redis: RedisServer, database: str
) -> None:
    published = tasks(30)
    await publish(mortal_redis.url, published)
    async with aclosing(RedisInbox(RedisConnection(mortal_redis.url), GROUP)) as dead:
        assert len(await dead.take()) == 30
        async with writer(mortal_redis.url, database, claim_after=0.1):
            assert await stored(database, 30) == ids(published)


async def test_a_redis_that_comes_back_empty_is_written_from_again(mortal_redis: RedisServer, database: str) -> None:
    before, after = tasks(20), tasks(20)
    async with writer(mortal_redis.url, database):
        await publish(mortal_redis.url, before)
        await stored(database, 20)
        mortal_redis.kill()
        mortal_redis.start()
        await publish(mortal_redis.url, after)
        assert await stored(database, 40) == ids([*before, *after])


async def test_while_postgres_is_away_the_bus_holds_what_comes(
    mortal_redis: RedisServer, postgres: PostgresServer, database: str
) -> None:
    before, meanwhile = tasks(20), tasks(500)
    async with writer(mortal_redis.url, database):
        await publish(mortal_redis.url, before)
        await stored(database, 20)
        await postgres.stop()
        try:
            for start in range(0, 500, 100):
                await publish(mortal_redis.url, meanwhile[start : start + 100])

            async def taken() -> int | None:
                return await waiting(mortal_redis.url) or None

            assert await eventually(taken) <= 200
        finally:
            await postgres.start()
        assert await stored(database, 520) == ids([*before, *meanwhile])


# ---- what no server does on demand -------------------------------------------------------------------------------


@dataclass
class Shelf:
    """A store that keeps in order, is away as often as told, and cannot keep some tasks at all."""

    away: int = 0
    impossible: frozenset[str] = frozenset()
    kept: list[str] = field(default_factory=list)

    async def remember(self, given: Sequence[Task]) -> int:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        if any(task.task_id in self.impossible for task in given):
            raise ValueError("not in this column")
        self.kept += [task.task_id for task in given]
        return len(given)


@dataclass
class Pile:
    """An inbox with everything in it at once; waits for ever when that is done."""

    deliveries: list[Delivery]
    ended: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self) -> Sequence[Delivery]:
        taken, self.deliveries = self.deliveries, []
        if not taken:
            self.over.set()
            await asyncio.Event().wait()
        return taken

    async def done(self, entries: Sequence[str]) -> None:
        self.ended += entries


async def written(pile: Pile, shelf: Shelf) -> None:
    run = asyncio.create_task(MemoryWriter(pile, shelf).run())  # type: ignore[arg-type]  # the part of it that counts
    await pile.over.wait()
    run.cancel()
    await asyncio.wait({run})
    assert run.cancelled()


async def test_a_task_that_cannot_be_kept_does_not_keep_out_the_others() -> None:
    given = tasks(5)
    pile = Pile([Delivery(entry=str(n), task=task) for n, task in enumerate(given)])
    shelf = Shelf(impossible=frozenset({given[2].task_id}))
    with structlog.testing.capture_logs() as logs:
        await written(pile, shelf)
    assert shelf.kept == [given[n].task_id for n in (0, 1, 3, 4)]
    assert pile.ended == ["0", "1", "2", "3", "4"]
    assert [(log["event"], log["task_id"]) for log in logs] == [("task_not_kept", given[2].task_id)]


async def test_what_cannot_be_read_is_said_and_left_behind() -> None:
    (task,) = tasks(1)
    pile = Pile([Delivery(entry="1", task=None), Delivery(entry="2", task=task)])
    shelf = Shelf()
    with structlog.testing.capture_logs() as logs:
        await written(pile, shelf)
    assert (shelf.kept, pile.ended) == ([task.task_id], ["1", "2"])
    assert [(log["event"], log["entry"]) for log in logs] == [("unreadable_task", "1")]


async def test_nothing_is_done_before_it_is_kept_however_often_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loom.activities.memory.writer.FIRST_PAUSE", 0.01)
    (task,) = tasks(1)
    story: list[str] = []
    shelf = Shelf(away=2, kept=story)
    await written(Pile([Delivery(entry="1", task=task)], ended=story), shelf)
    assert (story, shelf.away) == ([task.task_id, "1"], 0)


async def test_pieces_of_text_are_not_kept() -> None:
    (task,) = tasks(1)
    pile = Pile([Delivery(entry="1", task=replace(task, action=action)) for action in sorted(SHOWN_ONLY)])
    shelf = Shelf()
    await written(pile, shelf)
    assert (shelf.kept, pile.ended) == ([], ["1"] * len(SHOWN_ONLY))
