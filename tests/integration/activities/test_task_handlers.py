"""A user's handlers on a real Redis: what they raise, what a dead or slow worker leaves, and an away bus."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import structlog

from loom.activities.adapters.redis.bus import RedisBus
from loom.activities.adapters.redis.consumer import RedisInbox
from loom.activities.bus import Bus
from loom.activities.ports import StreamUnavailable
from loom.activities.task_handlers import GROUP, handling
from loom.composition.task_handlers import task_handlers_running
from loom.domain.core.task_routing import TaskHandler
from loom.domain.core.tasks import Action, Task
from loom.testing.waiting import eventually

from .conftest import RedisServer
from .test_bus import HOUR, come, left_to_heirs, link, renewed, task, time_passes


@pytest.fixture
def name() -> str:
    """Of a bus that no other test has."""
    return f"test:bus:{uuid4().hex}"


def handler(function: Callable[[Task], Any], pattern: str = "*", name: str = "h") -> TaskHandler:
    return TaskHandler(name=name, pattern=pattern, function=function)


@asynccontextmanager
async def worker(url: str, name: str, *handlers: TaskHandler) -> AsyncIterator[None]:
    """The handlers served as beside a worker."""
    bus = Bus(RedisBus(lambda: link(url), bus=name, claim_after=HOUR))
    async with aclosing(bus), handling(bus, handlers, pauses=(0.01, 0.01)):
        yield


async def send(url: str, name: str, *tasks: Task) -> None:
    async with aclosing(Bus(RedisBus(lambda: link(url), bus=name))) as bus:
        for each in tasks:
            await bus.publish(each, wait_result=False)


async def undone(url: str, name: str, group: str = f"{GROUP}h") -> int:
    async with aclosing(link(url)) as server:
        told = await server.call(lambda redis: redis.xpending(name, group))
        return int(told["pending"])


async def test_a_handler_sync_or_async_gets_what_its_pattern_takes_and_may_answer(redis_url: str, name: str) -> None:
    seen: list[Task] = []

    def sync(given: Task) -> str:
        seen.append(given)
        return "no answer"

    async def answers(given: Task) -> Task:
        return given

    sent = [task(Action.ERROR), task(Action.EXECUTE), task(Action.COMPLETE)]
    async with (
        aclosing(Bus(RedisBus(lambda: link(redis_url), bus=name))) as sender,
        worker(redis_url, name, handler(sync, "node.*"), handler(answers, "execute", "a")),
    ):
        assert [await sender.publish(one) for one in sent] == sent
    once = {each.task_id: each for each in seen}  # a busy machine may tell a task again
    assert list(once.values()) == [sent[0], sent[2]]


async def test_what_a_handler_raises_is_tried_again_then_left_aside_and_said(
    redis_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []
    seen: list[Task] = []
    others: list[Task] = []
    bad, shaky, last = task(key="bad"), task(key="shaky"), task(key="last")

    async def fails(given: Task) -> None:
        tried.append(given.task_id)
        if given == bad or tried.count(given.task_id) < 2:
            raise ZeroDivisionError("no such luck")
        if given.task_id == bad.task_id:
            sys.exit("this must not end the worker")
        seen.append(given)

    with structlog.testing.capture_logs() as logs:
        async with worker(redis_url, name, handler(fails), handler(others.append, name="other")):
            await send(redis_url, name, bad, shaky, last)
            await come(seen, 2)
            await eventually(lambda: nothing_left(redis_url, name))
    assert [tried.count(each.task_id) for each in (bad, shaky, last)] == [3, 2, 2]
    assert sorted(each.task_id for each in others) == sorted(each.task_id for each in (bad, shaky, last))
    aside = [vars(line) for line in caplog.records if line.message == "task_left_aside"]
    assert [(line["handler"], line["task_id"], line["levelname"]) for line in aside] == [
        ("handler:h", bad.task_id, "ERROR")
    ]
    failures = [log["attempt"] for log in logs if log["event"] == "handler_failed"]
    assert sorted(failures) == [1, 1, 1, 2]


async def nothing_left(url: str, name: str) -> bool:
    return await undone(url, name) == 0


async def test_what_a_dead_worker_had_and_what_came_meanwhile_the_next_one_gets_once(redis_url: str, name: str) -> None:
    seen: list[Task] = []
    async with worker(redis_url, name, handler(seen.append)):
        pass
    first, second = task(), task()
    await send(redis_url, name, first)
    async with aclosing(RedisInbox(link(redis_url), f"{GROUP}h", bus=name, block=0.2)) as dead:
        assert [one.task for one in await dead.take()] == [first]  # and is never heard of again
        await time_passes(redis_url, name, f"{GROUP}h", HOUR + 1)
        await send(redis_url, name, second)
        async with worker(redis_url, name, handler(seen.append)), worker(redis_url, name, handler(seen.append)):
            await come(seen, 2)
            await eventually(lambda: nothing_left(redis_url, name))
    assert sorted(one.task_id for one in seen) == sorted([first.task_id, second.task_id])


async def test_what_is_slow_nobody_takes_over_until_its_worker_ends(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loom.activities.adapters.redis.bus._ENDING", 0.1)
    monkeypatch.setattr("loom.activities.adapters.redis.bus._RENEW_SECONDS", 0.05)
    begun: list[str] = []
    never = asyncio.Event()

    async def slow(given: Task, by: str) -> None:
        begun.append(by)
        if by == "first":
            await never.wait()

    first, second = (handler(partial(slow, by=by)) for by in ("first", "second"))
    async with worker(redis_url, name, first):
        await send(redis_url, name, task())
        await come(begun, 1)  # type: ignore[arg-type]
        for _ in range(2):
            await time_passes(redis_url, name, f"{GROUP}h", HOUR * 0.9)
            await renewed(redis_url, name, f"{GROUP}h")
        assert await left_to_heirs(redis_url, name, f"{GROUP}h") == []
    await time_passes(redis_url, name, f"{GROUP}h", HOUR + 1)
    async with worker(redis_url, name, second):
        assert await come(begun, 2) == ["first", "second"]  # type: ignore[arg-type, comparison-overlap]


async def test_without_redis_the_worker_says_that_handlers_do_not_run() -> None:
    with structlog.testing.capture_logs() as logs:
        async with task_handlers_running([handler(print)], None):
            pass
    assert [(log["event"], log["handlers"]) for log in logs] == [("handlers_do_not_run", ["h"])]


async def test_handlers_are_subscribed_as_soon_as_redis_is_there(
    mortal_redis: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loom.activities.task_handlers._AT_START", 0.1)
    seen: list[Task] = []
    mortal_redis.kill()
    with structlog.testing.capture_logs() as logs:
        async with worker(mortal_redis.url, name, handler(seen.append)):
            assert "handlers_wait_for_the_bus" in [log["event"] for log in logs]
            mortal_redis.start()
            await eventually(lambda: said(logs, "handler_ready"))
            await eventually(lambda: patiently(partial(send, mortal_redis.url, name, task())))
            await come(seen, 1)


async def said(logs: list[Any], event: str) -> bool:
    return event in [log["event"] for log in logs]


async def patiently(step: Callable[[], Awaitable[None]]) -> bool:
    try:
        await step()
    except StreamUnavailable:
        return False
    return True
