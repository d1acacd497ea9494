"""The export of traces: what a receiver rejects or misses holds up nothing else, and nothing is lost to an outage."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
import structlog

from loom.activities import traces
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import RedisInbox
from loom.activities.adapters.redis.stream import BUS
from loom.activities.bus import Delivery
from loom.activities.metering import Meters
from loom.activities.traces import ExportFailed, SpanOutbox, TraceExport
from loom.composition.gauges import Lags
from loom.domain.core import metrics
from loom.domain.core.tasks import Task
from loom.domain.history.spans import RUN_ID, Span
from loom.testing.waiting import eventually
from tests.seen_meters import SeenMeters

AT: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def span(name: str, **attributes: str) -> Span:
    return Span(
        trace_id="a" * 32,
        span_id="b" * 16,
        parent_id=None,
        name=name,
        begun=AT,
        ended=AT + timedelta(seconds=1),
        attributes={RUN_ID: f"run of {name}", **attributes},
    )


class Receiver:
    """A `SpanExporter` whose receiver rejects a request if it rejects one of its spans."""

    def __init__(self, rejects: Callable[[Span], bool]) -> None:
        self.rejects = rejects
        self.spans: list[Span] = []
        self.requests = 0

    async def export(self, spans: Sequence[Span]) -> None:
        self.requests += 1
        if any(map(self.rejects, spans)):
            raise ExportFailed("400")
        self.spans += spans

    @property
    def names(self) -> set[str]:
        return {each.name for each in self.spans}


class OneTask:
    """An `Inbox` with one task, whose spans are in the outbox."""

    def __init__(self) -> None:
        self.waiting = [Delivery(entry="1", task=None)]
        self.acknowledged: list[str] = []

    async def take(self) -> Sequence[Delivery]:
        if not self.waiting:
            await asyncio.Event().wait()
        return [self.waiting.pop()]

    async def done(self, entries: Sequence[str]) -> None:
        self.acknowledged += entries


class NoTasks:
    """`RunTasks` of runs whose streams are gone."""

    async def first(self, run_id: str) -> Task | None:
        return None

    async def latest(self, run_id: str, wanted: Callable[[Task], bool]) -> Task | None:
        return None


@asynccontextmanager
async def exporting(receiver: Receiver, *spans: Span, meters: Meters | None = None) -> AsyncIterator[OneTask]:
    inbox, outbox = OneTask(), SpanOutbox(meters)
    for each in spans:
        outbox.add(each)
    export = asyncio.create_task(TraceExport(inbox, NoTasks(), receiver, outbox, with_content=False, gather=0.0).run())
    try:
        yield inbox
    finally:
        export.cancel()
        await asyncio.wait({export})


async def acknowledged(inbox: OneTask) -> None:
    async def look() -> bool:
        return inbox.acknowledged == ["1"]

    await eventually(look)


def rejected(logs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(line["span"], line["run_id"]) for line in logs if line["event"] == "span_rejected"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_PAUSES", (0.0,))


@pytest.mark.parametrize("bad", [{0}, {6}, {9}, {0, 1, 8}])
async def test_spans_that_the_receiver_rejects_are_logged_and_all_others_arrive(bad: set[int]) -> None:
    receiver, meters = Receiver(lambda each: each.name in {f"span {number}" for number in bad}), SeenMeters()
    with structlog.testing.capture_logs() as logs:
        async with exporting(receiver, *(span(f"span {number}") for number in range(10)), meters=meters) as inbox:
            await acknowledged(inbox)
    assert meters.total(metrics.SPANS_DROPPED) == len(bad)
    assert receiver.names == {f"span {number}" for number in range(10) if number not in bad}
    assert sorted(rejected(logs)) == [(f"span {number}", f"run of span {number}") for number in sorted(bad)]


async def test_a_receiver_that_is_away_costs_no_span_however_long_it_takes() -> None:
    receiver = Receiver(lambda _: True)

    async def has_missed_many() -> bool:
        return receiver.requests > 100

    with structlog.testing.capture_logs() as logs:
        async with exporting(receiver, *(span(f"span {number}") for number in range(10))) as inbox:
            await eventually(has_missed_many)
            assert inbox.acknowledged == []
            receiver.rejects = lambda _: False
            await acknowledged(inbox)
    assert receiver.names == {f"span {number}" for number in range(10)}
    assert rejected(logs) == []


async def test_a_lone_span_that_is_rejected_for_its_content_arrives_without_it() -> None:
    receiver = Receiver(lambda each: "text" in each.attributes)
    with structlog.testing.capture_logs() as logs:
        async with exporting(receiver, span("chat", text="x" * 1_000)) as inbox:
            await acknowledged(inbox)
    assert [each.attributes for each in receiver.spans] == [{}, {}]  # before and after the span itself was tried again
    assert rejected(logs) == [("chat", "run of chat")]


def test_spans_that_find_no_room_while_the_receiver_is_away_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_WAITING", 3)
    meters = SeenMeters()
    outbox = SpanOutbox(meters)
    for number in range(5):
        outbox.add(span(f"span {number}"))
    assert [each.name for each in outbox.taken()] == ["span 2", "span 3", "span 4"]
    assert meters.total(metrics.SPANS_DROPPED) == 2


async def test_the_tasks_that_wait_for_the_receiver_are_measured_until_the_bus_drops_them(redis_url: str) -> None:
    group, meters = uuid4().hex, SeenMeters()
    async with aclosing(RedisConnection(redis_url)) as link, aclosing(RedisConnection(redis_url)) as own:
        # Redis doesn't know the lag on a bus from which others have removed tasks.
        await link.call(lambda redis: redis.delete(BUS))
        lags = Lags(meters, link, {group: metrics.TRACE_LAG})
        await lags.read()
        await RedisInbox(own, group, since="now").join()
        await lags.read()
        for number in range(5):
            await link.call(lambda redis, number=number: redis.xadd(BUS, {"number": number}))  # type: ignore[misc]
        await lags.read()
        await link.call(lambda redis: redis.xtrim(BUS, maxlen=2, approximate=False))
        await lags.read()
        await link.call(lambda redis: redis.xgroup_destroy(BUS, group))
    assert meters.values(metrics.TRACE_LAG) == [0, 5, 2]
