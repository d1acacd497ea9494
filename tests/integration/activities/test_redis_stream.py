"""The live stream on a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from loom.activities.adapters.redis import connection
from loom.activities.adapters.redis import stream as streams
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import RedisReader, RedisStream, task_view
from loom.activities.ports import EventReader, EventStream, StreamUnavailable
from loom.domain.core.tasks import Action, Segment, Task
from loom.testing.harness import PATIENT_WITH_REDIS
from loom.testing.waiting import eventually

from .conftest import RedisServer

AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
FIRST: Final = Segment(name="t1-model", attempt=1)
SECOND: Final = Segment(name="t1-model", attempt=2)


def task(run_id: str, key: str, action: Action = Action.MESSAGE, **parameters: Any) -> Task:
    return Task(
        task_id=f"{run_id}-{key}",
        run_id=run_id,
        root_run_id=run_id,
        session_id="s",
        action=action,
        created_at=AT,
        parameters=parameters,
    )


def delta(run_id: str, text: str) -> Task:
    return task(run_id, "delta", Action.THINKING, content=text)


@pytest.fixture
def run_id() -> str:
    return uuid4().hex


@pytest.fixture
async def stream(redis_url: str) -> AsyncIterator[RedisStream]:
    async with aclosing(RedisStream(RedisConnection(redis_url))) as stream:
        yield stream


@pytest.fixture
def reader(redis_url: str) -> RedisReader:
    return RedisReader(redis_url)


@pytest.fixture(autouse=True)
def _patient_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_ANSWER_SECONDS", PATIENT_WITH_REDIS)


@pytest.fixture
def only_news_wakes_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no follower look again by itself: it goes on when something comes or its connection ends, or never."""
    monkeypatch.setattr(streams, "_BLOCK_SECONDS", 1000.0)


class Clock:
    """The seconds by which a connection tells how long ago Redis was away. They pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connection, "monotonic", clock)
    return clock


async def a_reader_waits(url: str) -> None:
    """Wait until a client blocks on this database, which is the test process's own."""
    number = urlsplit(url).path.removeprefix("/")
    async with aclosing(RedisConnection(url)) as link:

        async def look() -> bool:
            clients: Any = await link.call(lambda redis: redis.client_list())
            return any("b" in client["flags"] and client["db"] == number for client in clients)

        await eventually(look)


async def published_again(stream: RedisStream, tasks: Sequence[Task], clock: Clock) -> None:
    """Publish as soon as Redis answers; each second one try."""

    async def look() -> bool:
        clock.now += 1.05
        try:
            return await stream.publish(tasks)
        except StreamUnavailable:
            return False

    await eventually(look)


async def refusals(stream: RedisStream, run_id: str, times: int) -> list[bool]:
    """Publish in vain. Returns of each time whether Redis was asked."""
    asked = []
    for _ in range(times):
        with pytest.raises(StreamUnavailable) as refused:
            await stream.publish([delta(run_id, "lost")], FIRST)
        asked.append("a moment ago" not in str(refused.value))
    return asked


async def read_all(reader: EventReader, run_id: str, after: int = 0, *, follow: bool = False) -> list[tuple[int, Task]]:
    return [entry async for entry in reader.read(run_id, after, follow=follow)]


def texts(entries: list[tuple[int, Task]]) -> list[str]:
    return [task.parameters["content"] for _, task in entries]


def test_the_adapters_fit_their_ports(stream: RedisStream, reader: RedisReader) -> None:
    fits: tuple[EventStream, EventReader] = (stream, reader)
    assert all(fits)


async def test_a_run_under_the_id_of_one_that_has_ended_begins_its_stream_anew(
    stream: RedisStream, reader: RedisReader, run_id: str
) -> None:
    async def lived(text: str) -> list[tuple[int, str]]:
        begun = task(run_id, "start", Action.START)
        await stream.publish([begun])
        await stream.publish([begun, task(run_id, "said", text=text)], FIRST)  # a retry of what has not ended
        await stream.publish([task(run_id, "end", Action.COMPLETE)])
        return [(at, told.parameters.get("text", "")) for at, told in await read_all(reader, run_id)]

    assert await lived("first") == [(1, ""), (2, "first"), (3, "")]
    assert await lived("second") == [(4, ""), (5, "second"), (6, "")]


async def test_what_was_published_is_read_back_in_order(stream: RedisStream, reader: RedisReader, run_id: str) -> None:
    tasks = [task(run_id, "a", note="ä\n\0"), delta(run_id, "x"), delta(run_id, "y")]
    assert await stream.publish(tasks[:1])
    assert await stream.publish(tasks[1:], FIRST)
    assert await read_all(reader, run_id) == list(enumerate(tasks, start=1))


async def test_publishing_nothing_is_fine(stream: RedisStream) -> None:
    assert await stream.publish([])


async def test_a_run_without_events_has_none(reader: RedisReader, run_id: str) -> None:
    assert await read_all(reader, run_id) == []


async def test_a_task_with_an_id_is_written_once(stream: RedisStream, reader: RedisReader, run_id: str) -> None:
    await stream.publish([task(run_id, "a"), task(run_id, "a")])
    await stream.publish([task(run_id, "a"), task(run_id, "b")])
    assert await read_all(reader, run_id) == [(1, task(run_id, "a")), (2, task(run_id, "b"))]


async def test_a_late_writer_of_an_earlier_attempt_is_refused(
    stream: RedisStream, reader: RedisReader, run_id: str
) -> None:
    assert await stream.publish([delta(run_id, "old")], FIRST)
    assert await stream.publish([delta(run_id, "new")], SECOND)
    assert not await stream.publish([delta(run_id, "late"), task(run_id, "late")], FIRST)
    assert await stream.publish([delta(run_id, "er")], SECOND)
    assert await stream.publish([delta(run_id, "!")], Segment(name="t2-model", attempt=1))
    assert texts(await read_all(reader, run_id)) == ["old", "new", "er", "!"]


async def test_reading_goes_on_after_an_offset(stream: RedisStream, reader: RedisReader, run_id: str) -> None:
    await stream.publish([delta(run_id, str(n)) for n in range(1, 1203)])
    entries = await read_all(reader, run_id, 600)
    assert [offset for offset, _ in entries] == list(range(601, 1203))


async def test_writers_side_by_side_share_one_row_of_offsets(
    redis_url: str, stream: RedisStream, reader: RedisReader, run_id: str
) -> None:
    async def write(writer: RedisStream, name: str) -> None:
        for n in range(40):
            await writer.publish([delta(run_id, f"{name}{n}"), delta(run_id, f"{name}{n}'")])

    async with aclosing(RedisStream(RedisConnection(redis_url))) as other:
        writers = zip([stream, other] * 5, "abcdefghij", strict=True)
        await asyncio.gather(*(write(writer, name) for writer, name in writers))
    entries = await read_all(reader, run_id)
    assert [offset for offset, _ in entries] == list(range(1, 801))
    for name in "abcdefghij":
        own = [text for text in texts(entries) if text.startswith(name)]
        assert own == [f"{name}{n}{mark}" for n in range(40) for mark in ("", "'")]


@pytest.mark.usefixtures("only_news_wakes_readers")
async def test_following_gets_each_task_at_once_and_ends_with_the_run(
    stream: RedisStream, reader: RedisReader, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, Task]] = []

    async def follow() -> None:
        async for entry in reader.read(run_id, follow=True):
            seen.append(entry)  # noqa: PERF401 - the test looks meanwhile

    async def is_seen(count: int) -> bool:
        return len(seen) == count

    await stream.publish([delta(run_id, "early")])
    following = asyncio.create_task(follow())
    await eventually(lambda: is_seen(1))
    await stream.publish([delta(run_id, "late")])
    await eventually(lambda: is_seen(2))
    assert not following.done()
    end = task(run_id, "end", Action.COMPLETE)
    await stream.publish([end, task(run_id, "afterwards")])
    await following
    assert seen == [(1, delta(run_id, "early")), (2, delta(run_id, "late")), (3, end)]


async def test_a_stream_goes_on_after_an_end_when_its_run_is_retried(
    stream: RedisStream, reader: RedisReader, run_id: str
) -> None:
    ends = [task(run_id, key, Action.ERROR) for key in ("end", "end-2")]
    going_on = [task(run_id, "reset"), task(run_id, "n1", Action.RETRIED), delta(run_id, "again")]
    await stream.publish([ends[0], *going_on, ends[1], task(run_id, "afterwards")])
    for follow in (True, False):
        read = await read_all(reader, run_id, follow=follow)
        assert [each for _, each in read] == [ends[0], *going_on, ends[1]]


async def test_following_outlasts_a_silence(
    stream: RedisStream, reader: RedisReader, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, pages = streams._page, list[int]()

    async def page(*given: Any, **named: Any) -> list[tuple[int, bytes]]:
        found = await read(*given, **named)
        pages.append(len(found))
        return found

    async def was_silent() -> bool:
        return len(pages) >= 3 and not any(pages)

    monkeypatch.setattr(streams, "_BLOCK_SECONDS", 0.1)
    monkeypatch.setattr(streams, "_page", page)
    following = asyncio.create_task(read_all(reader, run_id, follow=True))
    await eventually(was_silent)
    await stream.publish([task(run_id, "end", Action.ERROR)])
    assert len(await following) == 1


async def test_a_reader_can_be_cancelled_and_left(
    stream: RedisStream, reader: RedisReader, redis_url: str, run_id: str
) -> None:
    following = asyncio.create_task(read_all(reader, run_id, follow=True))
    await a_reader_waits(redis_url)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await stream.publish([delta(run_id, "x"), delta(run_id, "y")])
    async with aclosing(reader.read(run_id)) as entries:
        assert await anext(entries) == (1, delta(run_id, "x"))


async def test_keys_expire_and_the_stream_stays_bounded(redis_url: str, reader: RedisReader, run_id: str) -> None:
    link = RedisConnection(redis_url)
    async with aclosing(RedisStream(link, keep_seconds=600, keep_entries=100)) as stream:
        for _ in range(5):
            await stream.publish([delta(run_id, "x")] * 100, FIRST)
        await stream.publish([task(run_id, "a")])
        for kind in ("events", "fence", "written"):
            left = await link.call(lambda redis, kind=kind: redis.ttl(f"loom:{kind}:{run_id}"))  # type: ignore[misc]
            assert 0 < left <= 600
    entries = await read_all(reader, run_id)
    assert 100 <= len(entries) < 300
    assert entries[-1][0] == 501


async def test_half_a_surrogate_pair_does_not_break_the_stream(
    stream: RedisStream, reader: RedisReader, run_id: str
) -> None:
    await stream.publish([delta(run_id, "a\ud83d")])
    assert texts(await read_all(reader, run_id)) == ["a?"]


@pytest.mark.usefixtures("only_news_wakes_readers")
async def test_a_killed_redis_is_noticed_at_once_and_found_again(
    mortal_redis: RedisServer, run_id: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    reader = RedisReader(mortal_redis.url)
    async with aclosing(RedisStream(RedisConnection(mortal_redis.url))) as stream:
        assert await stream.publish([delta(run_id, "1"), delta(run_id, "2")], FIRST)
        following = asyncio.create_task(read_all(reader, run_id, follow=True))
        await a_reader_waits(mortal_redis.url)
        mortal_redis.kill()
        caplog.clear()
        assert await refusals(stream, run_id, 100) == [True] + [False] * 99
        with pytest.raises(StreamUnavailable):
            await following
        mortal_redis.start()
        # The new server is empty; offsets go on, so that a reader which waits beyond 2 gets what follows.
        await published_again(stream, [delta(run_id, "3"), task(run_id, "end", Action.COMPLETE)], clock)
    assert [line.levelname for line in caplog.records if line.message.startswith("redis")].count("WARNING") == 2
    entries = await read_all(reader, run_id, 2, follow=True)
    assert [offset for offset, _ in entries] == [3, 4]


async def test_a_restart_between_two_events_goes_unnoticed(mortal_redis: RedisServer, run_id: str) -> None:
    async with aclosing(RedisStream(RedisConnection(mortal_redis.url))) as stream:
        await stream.publish([delta(run_id, "1")])
        mortal_redis.kill()
        mortal_redis.start()
        await asyncio.sleep(0.05)  # however slow the machine, the loop sees the connection's end before it wakes here
        assert await stream.publish([delta(run_id, "2")])


async def test_a_frozen_redis_is_waited_for_once_and_then_costs_nothing(
    mortal_redis: RedisServer, run_id: str, clock: Clock
) -> None:
    async with aclosing(RedisStream(RedisConnection(mortal_redis.url, answer_within=0.3))) as stream:
        await published_again(stream, [delta(run_id, "1")], clock)
        mortal_redis.freeze()
        assert await refusals(stream, run_id, 100) == [True] + [False] * 99
        mortal_redis.thaw()
        await published_again(stream, [delta(run_id, "2")], clock)


async def test_an_address_without_a_server_is_unavailable(run_id: str) -> None:
    async with aclosing(RedisStream(RedisConnection("redis://127.0.0.1:1/0"))) as stream:
        with pytest.raises(StreamUnavailable):
            await stream.publish([delta(run_id, "1")])
    with pytest.raises(StreamUnavailable):
        await read_all(RedisReader("redis://127.0.0.1:1/0"), run_id)


def test_the_public_view_has_the_contracts_keys_and_is_json() -> None:
    view = task_view(7, task("r", "a", Action.TOOL_CALL, tool="bash"))
    assert json.loads(json.dumps(view)) == {
        "offset": 7,
        "task_id": "r-a",
        "run_id": "r",
        "root_run_id": "r",
        "session_id": "s",
        "parent_task_id": None,
        "action": "node.tool_call",
        "source_agent": "",
        "target_agent": None,
        "status": "completed",
        "parameters": {"tool": "bash"},
        "result": None,
        "metadata": {},
        "created_at": "2026-01-02T03:04:05.000678+00:00",
    }
