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
from nats.js.api import ConsumerConfig, DeliverPolicy

from loom.activities.adapters.in_process_bus import InProcessBus
from loom.activities.adapters.nats.bus import NatsBus, _consumer
from loom.activities.adapters.redis.bus import RedisBus
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import RedisInbox
from loom.activities.adapters.redis.stream import RedisStream, dump_json
from loom.activities.bus import AT_ONCE, Bus, Handler, Inbox, Transport
from loom.activities.bus_stream import BusStream
from loom.activities.ports import StreamUnavailable
from loom.activities.publish import AbsentStream
from loom.domain.core.errors import BadRequest
from loom.domain.core.tasks import SHOWN_ONLY, Action, Segment, Task
from loom.testing.harness import PATIENT_WITH_REDIS
from loom.testing.waiting import eventually

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


@pytest.fixture(params=["redis", "nats"])
def between_processes(request: pytest.FixtureRequest, name: str) -> Callable[..., Bus]:
    """Makes a sender or a subscriber of one bus, as in a process of its own."""
    url = request.getfixturevalue(f"{request.param}_url")

    def another(**given: Any) -> Bus:
        if request.param == "redis":
            return Bus(RedisBus(lambda: link(url), bus=name, **given))
        return Bus(NatsBus(url, bus=name, **given))

    return another


@pytest.fixture(params=["in process", "redis", "nats"])
async def make(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Make]:
    """Makes senders and subscribers of one bus; in one process there is only one."""
    made: list[Bus] = []

    def another() -> Bus:
        if request.param == "redis":
            url = request.getfixturevalue("redis_url")
            made.append(Bus(RedisBus(lambda: link(url), bus=name)))
        elif request.param == "nats":
            made.append(Bus(NatsBus(request.getfixturevalue("nats_url"), bus=name)))
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
    fits: tuple[Transport, Transport, Transport, Inbox] = (
        InProcessBus(),
        RedisBus(lambda: link(redis_url)),
        NatsBus("nats://127.0.0.1:1"),
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
                aclosing(Bus(RedisBus(lambda: link(redis_url), bus=name, claim_after=HOUR)))
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


@pytest.mark.slow
async def test_what_a_slow_handler_works_on_nobody_takes_over_in_any_process(
    between_processes: Callable[..., Bus],
) -> None:
    seen: list[Task] = []
    go = asyncio.Event()

    async def slow(given: Task) -> Task:
        seen.append(given)
        await go.wait()
        return replace(given, status="completed")

    first, second, sender = (between_processes(claim_after=2) for _ in range(3))
    await first.subscribe("*", slow, name="h")
    await second.subscribe("*", slow, name="h")
    asked = task()
    answer = asyncio.create_task(sender.publish(asked))
    await come(seen, 1)
    # While the other looks at least four times for what a dead one may have left, and takes what is new.
    others = [await sender.publish(task(), wait_result=False) for _ in range(3)]
    await asyncio.sleep(8)
    assert seen == [asked, *others]
    go.set()
    assert await answer == replace(asked, status="completed")
    await asyncio.gather(first.aclose(), second.aclose(), sender.aclose())


async def test_a_handler_that_is_there_and_silent_is_not_waited_for_for_ever(make: Make) -> None:
    never = asyncio.Event()

    async def silent(given: Task) -> Task:
        await never.wait()
        return given

    await make().subscribe("*", silent)
    asked = task()
    assert await make().publish(asked, patience=0.3) == asked
    never.set()


async def test_no_more_tasks_are_begun_at_once_than_a_handler_may_work_on(
    between_processes: Callable[..., Bus],
) -> None:
    begun: list[Task] = []
    go = asyncio.Event()

    async def slow(given: Task) -> None:
        begun.append(given)
        await go.wait()

    subscriber, sender = between_processes(), between_processes()
    await subscriber.subscribe("*", slow, name="h")
    sent = [task() for _ in range(AT_ONCE + 5)]
    for one in sent:
        await sender.publish(one, wait_result=False)
    await come(begun, AT_ONCE)
    await asyncio.sleep(0.3)
    assert begun == sent[:AT_ONCE]
    go.set()
    assert await come(begun, len(sent)) == sent
    await asyncio.gather(subscriber.aclose(), sender.aclose())


async def test_what_came_while_nobody_served_a_name_the_next_one_gets(between_processes: Callable[..., Bus]) -> None:
    seen: list[Task] = []
    first, second, sender = (between_processes() for _ in range(3))
    await first.subscribe("node.*", collecting(seen), name="h")
    await first.aclose()
    await sender.publish(one := task(Action.ERROR), wait_result=False)
    await second.subscribe("node.*", collecting(seen), name="h")
    assert await come(seen, 1) == [one]
    await asyncio.gather(second.aclose(), sender.aclose())


@pytest.mark.parametrize("kind", ["redis", "nats"])
async def test_a_subscriber_of_a_server_that_was_killed_hears_again_when_it_is_back(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(f"mortal_{kind}")
    seen: list[Task] = []
    subscriber, sender = (
        Bus(RedisBus(lambda: link(server.url)) if kind == "redis" else NatsBus(server.url)) for _ in range(2)
    )
    await subscriber.subscribe("*", collecting(seen), name="h")
    await sender.publish(first := task(), wait_result=False)
    await come(seen, 1)
    server.kill()
    with pytest.raises(StreamUnavailable):
        await sender.publish(task(), wait_result=False)
    server.start()

    await _patiently(lambda: sender.publish(second, wait_result=False), second := task())
    assert await come(seen, 2) == [first, second]
    await asyncio.gather(subscriber.aclose(), sender.aclose())


async def test_a_nats_server_that_has_lost_the_stream_gets_it_again(nats_url: str, name: str) -> None:
    seen: list[Task] = []
    subscriber, sender = NatsBus(nats_url, bus=name), NatsBus(nats_url, bus=name)
    await Bus(subscriber).subscribe("*", collecting(seen), name="h")
    await sender.send(first := task())
    await come(seen, 1)
    jetstream = await sender._jetstream()
    await jetstream.delete_stream(sender._stream)
    await sender.send(task())  # nobody has a consumer for it yet

    async def heard() -> bool:
        await sender.send(second)
        return second in seen

    second = task()
    assert await eventually(heard)
    assert seen[0] == first
    await asyncio.gather(subscriber.aclose(), sender.aclose())


async def test_a_task_that_is_too_large_for_the_server_is_refused_in_words(nats_url: str, name: str) -> None:
    bus = Bus(NatsBus(nats_url, bus=name))
    with pytest.raises(StreamUnavailable, match="bytes, and this server accepts 1,048,576"):
        await bus.publish(task(text="x" * 1_100_000), wait_result=False)
    await bus.aclose()


async def test_a_task_that_is_too_large_only_with_its_header_is_refused_in_the_same_words(
    nats_url: str, name: str
) -> None:
    heard: list[Task] = []
    subscriber, sender = Bus(NatsBus(nats_url, bus=name)), Bus(NatsBus(nats_url, bus=name))
    await subscriber.subscribe("*", collecting(heard), name="h")
    empty = task(text="")
    room = 1_048_576 - len(dump_json(Task, empty))
    with pytest.raises(StreamUnavailable, match="1,048,576 bytes, and this server accepts 1,048,576"):
        await sender.publish(replace(empty, parameters={"text": "x" * room}))
    await sender.publish(largest := replace(empty, parameters={"text": "x" * (room - 200)}))
    assert heard == [largest]
    await asyncio.gather(subscriber.aclose(), sender.aclose())


async def test_unacknowledged_tasks_of_a_nats_consumer_do_not_keep_back_the_others(nats_url: str, name: str) -> None:
    begun: list[Task] = []
    go = asyncio.Event()

    async def slow(given: Task) -> None:
        begun.append(given)
        await go.wait()

    subscriber, sender = NatsBus(nats_url, bus=name), NatsBus(nats_url, bus=name)
    jetstream = await sender._jetstream()
    limited = ConsumerConfig(  # as an earlier release made it, with the server's own limit, which is 1,000
        durable_name=_consumer("h"),
        description="h",
        deliver_policy=DeliverPolicy.NEW,
        filter_subject=f"{sender._subject}.>",
        ack_wait=60.0,
        max_ack_pending=2,
    )
    await jetstream.add_consumer(sender._stream, limited)
    await Bus(subscriber).subscribe("*", slow, name="h")
    sent = [task() for _ in range(5)]
    for one in sent:
        await sender.send(one)
    assert await come(begun, 5) == sent
    go.set()
    await asyncio.gather(subscriber.aclose(), sender.aclose())


class Away:
    """An `EventStream` whose store doesn't respond."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        raise StreamUnavailable("Redis does not respond")


class Replaced:
    """An `EventStream` of an attempt that a later one has replaced."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        return False


async def test_the_bus_receives_a_runs_tasks_while_the_store_of_its_stream_is_away(nats_url: str, name: str) -> None:
    seen: list[Task] = []
    bus = NatsBus(nats_url, bus=name)
    await Bus(bus).subscribe("*", collecting(seen), name="h")
    sent = [task(action) for action in (Action.EXECUTE, Action.THINKING, Action.ERROR)]
    with pytest.raises(StreamUnavailable, match="Redis does not respond"):
        await BusStream(Away(), bus).publish(sent)
    assert not await BusStream(Replaced(), bus).publish([task()])
    assert await BusStream(AbsentStream(), bus).publish(last := [task()])
    assert await come(seen, 3) == [sent[0], sent[2], *last]
    await bus.aclose()


async def test_a_task_that_is_too_large_for_the_bus_does_not_take_the_others_with_it(nats_url: str, name: str) -> None:
    seen: list[Task] = []
    bus = NatsBus(nats_url, bus=name)
    await Bus(bus).subscribe("*", collecting(seen), name="h")
    before, large, after = task(), task(text="x" * 1_100_000), task()
    with structlog.testing.capture_logs() as logs:
        assert await BusStream(AbsentStream(), bus).publish([before, large, after])
    assert await come(seen, 2) == [before, after]
    assert [(line["run_id"], line["task_id"]) for line in logs if line["event"] == "task_not_on_bus"] == [
        (large.run_id, large.task_id)
    ]
    await bus.aclose()


async def _patiently(publish: Callable[[], Awaitable[Task]], expected: Task) -> None:
    async def look() -> Task | None:
        try:
            return await publish()
        except StreamUnavailable:
            return None

    assert await eventually(look) == expected
