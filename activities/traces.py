"""Export the traces of runs: build the spans from the tasks on the bus, and acknowledge a task once its span is out.

If a worker dies, its unacknowledged tasks go to another worker. No span of a finished step is therefore lost, and a
span that is exported twice has the same id. A receiver that is away delays the export; meanwhile the bus keeps its
newest 20,000 tasks. A span that the receiver rejects while it accepts others is logged, and its task acknowledged.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

import structlog

from loom.activities.bus import Delivery, Inbox
from loom.activities.metering import Meters
from loom.activities.ports import StreamUnavailable
from loom.activities.recall import RecallSource
from loom.domain.agents.spec import AgentSpec
from loom.domain.core import metrics
from loom.domain.core.messages import Message
from loom.domain.core.tasks import Origin, Task, trace_id
from loom.domain.history.spans import (
    OPENINGS,
    RUN_ID,
    Place,
    Span,
    ends_span,
    execution_of,
    knows_duration,
    memory_search,
    opening_of,
    span_of,
)

_log = structlog.get_logger("loom.traces")

GROUP: Final = "traces"
_FULL: Final = 100
"""With so many tasks at once, the next ones are read immediately."""
_REMEMBERED: Final = 2_000
_OPENINGS_OF_RUN: Final = 30
_WAITING: Final = 2_000
_TRIES: Final = 3
"""Number of failures after which fewer spans are sent at once."""
_PAUSES: Final = (1.0, 2.0, 5.0, 15.0)
"""Seconds before each further attempt to export. The last number is repeated."""


class ExportFailed(Exception):
    """The receiver did not accept the spans."""


class SpanExporter(Protocol):
    """Sends spans to a receiver."""

    async def export(self, spans: Sequence[Span]) -> None:
        """Send the spans. Raises ExportFailed."""
        ...


class RunTasks(Protocol):
    """The tasks in the streams of runs. Both methods raise StreamUnavailable."""

    async def first(self, run_id: str) -> Task | None:
        """Return the first task of a run's stream, if it is still there."""
        ...

    async def latest(self, run_id: str, wanted: Callable[[Task], bool]) -> Task | None:
        """Return the latest task that `wanted` accepts, if it is among the newest ones of the run's stream."""
        ...


class SpanOutbox:
    """Spans of this worker that no task stands for, until they are exported. If the worker dies, they are lost."""

    def __init__(self, meters: Meters | None = None) -> None:
        self._meters = meters
        self._waiting: deque[Span] = deque(maxlen=_WAITING)

    def add(self, span: Span) -> None:
        """Export the span soon. While the receiver is away, only the newest ones are kept."""
        if len(self._waiting) == _WAITING:
            self.drop()
        self._waiting.append(span)

    def drop(self) -> None:
        """Count a span that is lost."""
        if self._meters is not None:
            self._meters.measure(metrics.SPANS_DROPPED)

    def taken(self) -> list[Span]:
        """Remove the waiting spans, and return them."""
        spans = list(self._waiting)
        self._waiting.clear()
        return spans


@dataclass(frozen=True, slots=True)
class TracedSource:
    """A `RecallSource` that searches memory, with a span for each search."""

    source: RecallSource
    outbox: SpanOutbox

    async def recall(self, question: str, origin: Origin, spec: AgentSpec) -> Message | None:
        """See the port."""
        begun = datetime.now(UTC)
        found = await self.source.recall(question, origin, spec)
        self.outbox.add(memory_search(origin, begun=begun, ended=datetime.now(UTC), source=type(self.source).__name__))
        return found


class TraceExport:
    """Exports the spans of all runs whose tasks reach this consumer, and those in this worker's outbox."""

    def __init__(
        self,
        inbox: Inbox,
        tasks: RunTasks,
        exporter: SpanExporter,
        outbox: SpanOutbox,
        *,
        with_content: bool,
        gather: float,
    ) -> None:
        """`with_content` says whether spans contain texts from people, models and tools. `gather` is the number of
        seconds in which the spans of one export gather.
        """
        self._outbox = outbox
        self._inbox = inbox
        self._tasks = tasks
        self._exporter = exporter
        self._with_content = with_content
        self._gather = gather
        self._accepted: Span | None = None  # a span that the receiver has accepted
        self._places: OrderedDict[tuple[str, str], Place] = OrderedDict()
        self._openings: OrderedDict[str, deque[Task]] = OrderedDict()

    async def run(self) -> None:
        """Export until this method is canceled."""
        while True:
            try:
                taken = await self._inbox.take()
                if spans := [*await self._spans(taken), *self._outbox.taken()]:
                    await self._exported(spans)
                if taken:
                    await self._inbox.done([each.entry for each in taken])
                    if len(taken) < _FULL:
                        await asyncio.sleep(self._gather)
            except StreamUnavailable as error:
                _log.debug("traces_wait_for_redis", error=str(error))
                await asyncio.sleep(_PAUSES[0])

    async def _exported(self, spans: Sequence[Span]) -> None:
        """Export the spans, and retry until it succeeds. After three failures, send only half of them at once, so that
        a span that the receiver rejects doesn't hold up the others.
        """
        waiting, size, failures = list(spans), len(spans), 0
        while waiting:
            batch = waiting[:size]
            if (error := await self._failure(batch)) is None:
                del waiting[:size]
                size, failures = 2 * size, 0
                continue
            pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
            failures += 1
            if failures % _TRIES == 0 and len(batch) > 1:
                size, failures = len(batch) // 2, 0
            elif failures % _TRIES == 0:
                alone = waiting.pop(0)
                if await self._is_rejected(alone):
                    _log.error("span_rejected", span=alone.name, run_id=alone.attributes.get(RUN_ID), error=error)
                    self._outbox.drop()
                    failures = 0
                    continue
                waiting.append(alone)  # perhaps another one gets through
            _log.warning("spans_not_exported", spans=len(batch), error=error, next_try_in=pause)
            await asyncio.sleep(pause)

    async def _failure(self, spans: Sequence[Span]) -> str | None:
        """Export the spans. Return the reason if the receiver didn't accept them."""
        try:
            await self._exporter.export(spans)
        except ExportFailed as error:
            return str(error)
        self._accepted = spans[-1]
        return None

    async def _is_rejected(self, span: Span) -> bool:
        """Whether the receiver rejects this span, and accepts another one immediately before and after it.

        OpenTelemetry's exporter doesn't say whether the receiver responded, and no span may be lost because the
        receiver was unavailable. The other span is one that the receiver has accepted before, or this one without its
        attributes.
        """
        other = self._accepted or replace(span, attributes={}, error="")
        if await self._failure([other]) is not None or await self._failure([span]) is None:
            return False
        return await self._failure([other]) is None

    async def _spans(self, deliveries: Sequence[Delivery]) -> list[Span]:
        """Return the spans that these tasks end. The task that begins a span comes before the one that ends it."""
        spans = []
        for task in (each.task for each in deliveries if each.task is not None):
            if task.action in OPENINGS:
                self._remember(task)
            elif ends_span(task) and (span := await self._span(task)) is not None:
                spans.append(span)
        return spans

    async def _span(self, task: Task) -> Span | None:
        try:
            place = await self._place(task)
            opening = await self._opening(task, place)
            return span_of(task, place, opening, with_content=self._with_content)
        except StreamUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a task of another release must not end the export of all others
            _log.error("span_not_built", task_id=task.task_id, exc_info=error)
            return None

    def _remember(self, task: Task) -> None:
        """Keep a task that begins a span, because the task that ends it follows soon."""
        self._openings.setdefault(task.run_id, deque(maxlen=_OPENINGS_OF_RUN)).append(task)
        self._openings.move_to_end(task.run_id)
        if len(self._openings) > _REMEMBERED:
            self._openings.popitem(last=False)

    async def _opening(self, task: Task, place: Place) -> Task | None:
        """Return the task that began a span. If another worker has read it from the bus, it is in the run's stream.
        Reading the stream is slow, so it is read only for what the task that ended the span doesn't know.
        """
        if (wanted := opening_of(task, place)) is None:
            return None
        known = next(filter(wanted, reversed(self._openings.get(task.run_id, ()))), None)
        if known is not None or (knows_duration(task) and not self._with_content):
            return known
        return await self._tasks.latest(task.run_id, wanted)

    async def _place(self, task: Task) -> Place:
        """Return the run's place. It is found with the first tasks of the run and of its root, once for each run."""
        key = (task.run_id, task.task_id.removeprefix(f"{task.run_id}/").partition("/")[0])
        if (known := self._places.get(key)) is not None:
            self._places.move_to_end(key)
            return known
        start = await self._tasks.first(task.run_id)
        root = start if task.root_run_id == task.run_id else await self._tasks.first(task.root_run_id)
        place = Place(
            trace_id=trace_id(task.root_run_id, "" if root is None else execution_of(root)),
            execution=key[1] if start is None else execution_of(start),
            start=start,
        )
        self._places[key] = place
        if len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)
        return place
