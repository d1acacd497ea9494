"""The bus, in one process and between processes on a real Redis: the same promises."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import pytest
import structlog

from loom.activities.adapters.in_process_bus import InProcessBus
from loom.activities.adapters.redis.bus import RedisBus
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import RedisInbox
from loom.activities.adapters.redis.stream import RedisStream
from loom.activities.bus import Bus, Handler, Inbox, Transport
from loom.domain.core.errors import BadRequest
from loom.domain.core.tasks import SHOWN_ONLY, Action, Segment, Task
from tests.harness import PATIENT_WITH_REDIS
from tests.waiting import PATIENCE, eventually

from .conftest import RedisServer

AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
HOUR: Final = 3600.0
"""Seconds after which a group's tasks are taken over: so many that only `time_passes` lets it come to that."""
Make = Callable[[], Bus]


def task(action: Action = Action.EXECUTE, key: str = "", **parameters: Any) -> Task:
    name = key or uuid4().hex
    return Task(
        task_id=f"r/{name}/{action}",
        run_id="r",
        root_run_id="r",
        session_id="s",
        action=action,
        created_at=AT,
        status="pending",
        parameters=parameters,
        metadata={"importance": 0.5},
    )


@pytest.fixture
def name() -> str:
    """Of a bus that no other test has."""
    return f"test:bus:{uuid4().hex}"


@pytest.fixture(params=["in process", "redis"])
async def make(request: pytest.FixtureRequest, redis_url: str, name: str) -> AsyncIterator[Make]:
    """Makes senders and subscribers of one bus; in one process there is only one."""
    made: list[Bus] = []

    def another() -> Bus:
        if request.param == "redis":
            made.append(Bus(RedisBus(lambda: link(redis_url), bus=name, patience=PATIENCE)))
        elif not made:
            made.append(Bus(InProcessBus()))
        return made[-1]

    yield another
    await asyncio.gather(*(bus.aclose() for bus in made))


def link(url: str) -> RedisConnection:
    return RedisConnection(url, answer_within=PATIENT_WITH_REDIS)


async def time_passes(url: str, name: str, group: str, seconds: float) -> None:
    """Make what the group works on look as if nobody had renewed it for so long."""
    async with aclosing(link(url)) as server:
        pending: Any = await server.call(lambda redis: redis.xpending_range(name, group, "-", "+", 100))
        for one in pending:
            ids = [one["message_id"]]
            await server.call(
                lambda redis, one=one, ids=ids: redis.xclaim(  # type: ignore[misc]
                    name, group, one["consumer"], 0, ids, idle=round(seconds * 1000), justid=True
                )
            )


async def renewed(url: str, name: str, group: str) -> None:
    """Wait until whoever works on something has renewed all of its claims."""
    async with aclosing(link(url)) as server:

        async def look() -> bool:
            pending: Any = await server.call(lambda redis: redis.xpending_range(name, group, "-", "+", 100))
            return all(one["time_since_delivered"] < HOUR * 1000 / 2 for one in pending)

        await eventually(look)


async def left_to_heirs(url: str, name: str, group: str) -> list[Task | None]:
    """What another member of the group would take over at this moment."""
    async with aclosing(RedisInbox(link(url), group, bus=name, claim_after=HOUR, block=0.01)) as heir:
        return [one.task for one in await heir.take()]


def answering(status: str, **result: Any) -> Handler:
    async def handler(given: Task) -> Task:
        return replace(given, status=status, result=result)

    return handler


def collecting(into: list[Task]) -> Handler:
    async def handler(given: Task) -> None:
        into.append(given)

    return handler


async def broken(given: Task) -> Task:
    raise ZeroDivisionError("no such luck")


async def come(seen: list[Task], count: int) -> list[Task]:
    async def look() -> list[Task] | None:
        return seen if len(seen) >= count else None

    return await eventually(look)


def test_the_adapters_fit_their_ports(redis_url: str) -> None:
    fits: tuple[Transport, Transport, Inbox] = (
        InProcessBus(),
        RedisBus(lambda: link(redis_url)),
        RedisInbox(link(redis_url), "g"),
    )
    assert all(fits)


@pytest.mark.parametrize("status", ["completed", "failed", "pending", "anything the handler likes"])
async def test_a_handlers_status_reaches_the_sender_unchanged(make: Make, status: str) -> None:
    await make().subscribe("execute", answering(status, answer=42), name="h")
    asked = task(question="äöü \0 好")
    assert await make().publish(asked) == replace(asked, status=status, result={"answer": 42})


async def test_a_task_without_a_handler_comes_back_as_it_was(make: Make) -> None:
    await make().subscribe("node.*", answering("completed"), name="h")
    asked = task()
    assert await make().publish(asked) == asked


async def test_one_that_only_looks_on_leaves_the_task_as_it_was(make: Make) -> None:
    seen: list[Task] = []
    await make().subscribe("*", collecting(seen), name="h")
    asked = task(a=[1, {"b": None}])
    assert await make().publish(asked) == asked
    assert seen == [asked]


async def test_whoever_does_not_wait_gets_the_task_back_before_it_is_handled(make: Make) -> None:
    seen: list[Task] = []
    go = asyncio.Event()

    async def slow(given: Task) -> Task:
        await go.wait()
        seen.append(given)
        return replace(given, status="completed")

    await make().subscribe("*", slow, name="h")
    asked = task()
    assert (await make().publish(asked, wait_result=False), seen) == (asked, [])
    go.set()
    assert await come(seen, 1) == [asked]


async def test_each_subscriber_gets_what_its_pattern_takes_once(make: Make) -> None:
    seen: dict[str, list[Task]] = {pattern: [] for pattern in ("*", "node.*", "node.error", "tool.*")}
    for pattern, into in seen.items():
        await make().subscribe(pattern, collecting(into), name=pattern)
    sent = [task(action) for action in (Action.EXECUTE, Action.ERROR, Action.MESSAGE, Action.REGISTERED)]
    sender = make()
    for one in sent:
        await sender.publish(one)
    assert seen == {"*": sent, "node.*": sent[1:3], "node.error": sent[1:2], "tool.*": sent[3:]}


async def test_a_handler_that_raises_hurts_nobody_else(make: Make) -> None:
    seen: list[Task] = []
    await make().subscribe("*", broken, name="a")
    await make().subscribe("*", collecting(seen), name="b")
    asked = task()
    told = {"error": "ZeroDivisionError", "message": "no such luck"}
    assert await make().publish(asked) == replace(asked, status="failed", result=told)
    await make().subscribe("*", answering("completed"), name="c")
    assert await make().publish(asked) == replace(asked, status="completed", result={})
    assert seen == [asked, asked]


async def test_of_several_answers_the_first_subscribers_counts(make: Make) -> None:
    await make().subscribe("*", answering("one"), name="a")
    await make().subscribe("*", answering("two"), name="b")
    assert [(await make().publish(task())).status for _ in range(3)] == ["one"] * 3


async def test_a_handler_can_publish_what_it_handles_itself(make: Make) -> None:
    inner = make()

    async def descending(given: Task) -> Task:
        depth = given.parameters["depth"]
        below = await inner.publish(task(depth=depth - 1)) if depth else given
        return replace(given, status="completed", result={"sum": depth + (below.result or {}).get("sum", 0)})

    await inner.subscribe("execute", descending, name="h")
    assert (await make().publish(task(depth=4))).result == {"sum": 10}


async def test_what_a_handler_does_to_its_task_nobody_else_sees(make: Make) -> None:
    seen: list[Task] = []

    async def meddling(given: Task) -> None:
        given.parameters["list"].append("more")  # as one may in a dictionary

    await make().subscribe("*", meddling, name="a")
    await make().subscribe("*", collecting(seen), name="b")
    asked = task(list=["one"])
    assert await make().publish(asked) == task(key=asked.task_id.split("/")[1], list=["one"])
    assert seen == [asked]


async def test_who_has_unsubscribed_gets_nothing_more(make: Make) -> None:
    subscriber = make()
    given = await subscriber.subscribe("execute", answering("completed"))
    await subscriber.unsubscribe(given)
    asked = task()
    assert await make().publish(asked) == asked


async def test_a_pattern_that_takes_nothing_is_refused(make: Make) -> None:
    with pytest.raises(BadRequest, match="pattern"):
        await make().subscribe("*.error", collecting([]))


# ---- between processes -------------------------------------------------------------------------------------------


@pytest.fixture
async def inbox(redis_url: str, name: str) -> AsyncIterator[Callable[..., RedisInbox]]:
    made: list[RedisInbox] = []

    def another(group: str = "memory", **given: Any) -> RedisInbox:
        made.append(RedisInbox(link(redis_url), group, bus=name, block=0.2, **given))
        return made[-1]

    yield another
    await asyncio.gather(*(one.aclose() for one in made))


async def send(url: str, name: str, tasks: Sequence[Task]) -> None:
    async with aclosing(RedisBus(lambda: link(url), bus=name)) as bus:
        for one in tasks:
            await bus.send(one)


async def entries(url: str, name: str) -> int:
    async with aclosing(link(url)) as server:
        return int(await server.call(lambda redis: redis.xlen(name)))


async def test_a_runs_stream_puts_its_tasks_on_the_bus_too_but_for_pieces_of_text(
    redis_url: str, name: str, inbox: Callable[..., RedisInbox]
) -> None:
    run_id = uuid4().hex
    every = [replace(task(action), run_id=run_id) for action in Action]
    again = [one for one in every if one.action is not Action.START]  # a start after an end is another run's
    async with aclosing(RedisStream(RedisConnection(redis_url), bus=name)) as stream:
        await stream.publish(every, Segment(name="t1-model"))
        await stream.publish(again, Segment(name="t1-model"))
        assert not await stream.publish([replace(task(), run_id=run_id)], Segment(name="t1-model", attempt=0))
    taken = await inbox().take()
    assert [one.task for one in taken] == [one for one in every if one.action not in SHOWN_ONLY]


async def test_members_of_a_group_share_and_another_group_gets_everything(
    redis_url: str, name: str, inbox: Callable[..., RedisInbox]
) -> None:
    sent = [task() for _ in range(300)]
    await send(redis_url, name, sent)
    first, second, other = inbox(), inbox(), inbox("other")
    taken = [one.task for member in (first, second) for one in await member.take()]
    assert taken == sent
    assert [one.task for _ in range(2) for one in await other.take()] == sent


async def test_what_a_dead_member_left_another_takes_over(
    redis_url: str, name: str, inbox: Callable[..., RedisInbox]
) -> None:
    sent = [task() for _ in range(3)]
    await send(redis_url, name, sent)
    left = await inbox().take()  # and is never heard of again
    heir = inbox(claim_after=0.05)

    async def look() -> Any:
        return await heir.take() or None

    inherited = await eventually(look)
    assert list(inherited) == list(left)
    await heir.done([one.entry for one in inherited])
    assert await inbox(claim_after=0.0).take() == []


async def test_what_every_group_has_done_leaves_the_stream(
    redis_url: str, name: str, inbox: Callable[..., RedisInbox]
) -> None:
    fast, slow = inbox("fast"), inbox("slow")
    await slow.join()
    await send(redis_url, name, [task() for _ in range(400)])
    for _ in range(2):
        await fast.done([one.entry for one in await fast.take()])
    assert (await fast.trim(), await entries(redis_url, name)) == (0, 400)
    page = await slow.take()
    assert (await fast.trim(), await entries(redis_url, name)) == (0, 400)
    await slow.done([one.entry for one in page])
    await slow.trim()
    assert 200 <= await entries(redis_url, name) <= 300
    await slow.done([one.entry for one in await slow.take()])
    await slow.trim()
    assert await entries(redis_url, name) <= 100


async def test_the_bus_stays_bounded_when_nobody_takes_from_it(redis_url: str, name: str) -> None:
    async with aclosing(RedisStream(RedisConnection(redis_url), bus=name, bus_entries=100)) as stream:
        await stream.publish([replace(task(), run_id=uuid4().hex) for _ in range(1000)])
    assert 100 <= await entries(redis_url, name) <= 200


async def test_what_is_no_task_is_delivered_as_unreadable(
    redis_url: str, name: str, inbox: Callable[..., RedisInbox]
) -> None:
    async with aclosing(link(redis_url)) as server:
        await server.call(lambda redis: redis.xadd(name, {"task": b'{"no": "task"}'}))
        await server.call(lambda redis: redis.xadd(name, {"other": b"field"}))
    assert [one.task for one in await inbox().take()] == [None, None]


async def test_what_a_slow_handler_works_on_nobody_takes_over(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loom.activities.adapters.redis.bus._RENEW_SECONDS", 0.05)
    seen: list[Task] = []
    go = asyncio.Event()

    async def slow(given: Task) -> Task:
        seen.append(given)
        await go.wait()
        return replace(given, status="completed")

    async with AsyncExitStack() as stack:
        first, second, sender = [
            await stack.enter_async_context(
                aclosing(Bus(RedisBus(lambda: link(redis_url), bus=name, claim_after=HOUR, patience=PATIENCE)))
            )
            for _ in range(3)
        ]
        stack.callback(go.set)
        await first.subscribe("*", slow, name="h")
        await second.subscribe("*", slow, name="h")
        asked = task()
        answer = asyncio.create_task(sender.publish(asked))
        others = [await sender.publish(task(), wait_result=False) for _ in range(3)]
        await come(seen, 4)
        for _ in range(2):
            await time_passes(redis_url, name, "h", HOUR * 0.9)
            await renewed(redis_url, name, "h")
        assert await left_to_heirs(redis_url, name, "h") == []
        assert sorted(one.task_id for one in seen) == sorted(one.task_id for one in [asked, *others])
        go.set()
        assert await answer == replace(asked, status="completed")


async def test_a_handler_that_is_there_and_silent_is_not_waited_for_for_ever(redis_url: str, name: str) -> None:
    never = asyncio.Event()

    async def silent(given: Task) -> Task:
        await never.wait()
        return given

    async with AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(aclosing(Bus(RedisBus(lambda: link(redis_url), bus=name))))
        sender = Bus(RedisBus(lambda: link(redis_url), bus=name, patience=0.3))
        await stack.enter_async_context(aclosing(sender))
        stack.callback(never.set)
        await subscriber.subscribe("*", silent, name="h")
        asked = task()
        with structlog.testing.capture_logs() as logs:
            assert await sender.publish(asked) == asked
    assert [log["names"] for log in logs if log["event"] == "handlers_silent"] == [["h"]]


async def test_a_subscriber_of_a_redis_that_was_killed_hears_again_when_it_is_back(mortal_redis: RedisServer) -> None:
    seen: list[Task] = []
    async with (
        aclosing(Bus(RedisBus(lambda: link(mortal_redis.url)))) as subscriber,
        aclosing(Bus(RedisBus(lambda: link(mortal_redis.url)))) as sender,
    ):
        await subscriber.subscribe("*", collecting(seen), name="h")
        await sender.publish(first := task(), wait_result=False)
        await come(seen, 1)
        mortal_redis.kill()
        mortal_redis.start()

        await _patiently(lambda: sender.publish(second, wait_result=False), second := task())
        assert await come(seen, 2) == [first, second]


async def _patiently(publish: Callable[[], Awaitable[Task]], expected: Task) -> None:
    from loom.activities.ports import StreamUnavailable  # noqa: PLC0415

    async def look() -> Task | None:
        try:
            return await publish()
        except StreamUnavailable:
            return None

    assert await eventually(look) == expected
