"""Record measurements with Temporal's meter, and measure model calls, permits and the live stream.

A worker without metrics has none of this: its parts aren't wrapped.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, TypeAlias

from temporalio.common import MetricMeter

from loom.activities.model_permits import Outcome, Permit, PermitRequest, Permits, Wait
from loom.activities.ports import (
    EventStream,
    LLMProvider,
    ModelAnswer,
    ModelCall,
    OnDelta,
    Providers,
    StreamAbsent,
    StreamUnavailable,
)
from loom.domain.core import metrics
from loom.domain.core.errors import BY_NAME, LoomError
from loom.domain.core.metrics import Measurement, Metric, model_labels
from loom.domain.core.requests import ModelOptions
from loom.domain.core.tasks import Segment, Task

_Record: TypeAlias = Callable[[float], None]

BUCKETS: Final = {metric.name: metric.buckets for metric in metrics.ALL if metric.kind == "histogram"}
"""The histogram buckets for `PrometheusConfig.histogram_bucket_overrides`. Temporal's own start at 50 ms or 50 s."""


class Meters:
    """Records measurements. All of a process's workers with the same runtime share its endpoint."""

    def __init__(self, meter: MetricMeter) -> None:
        self._meter = meter
        self._records: dict[tuple[str, tuple[str, ...]], _Record] = {}

    def record(self, measurement: Measurement) -> None:
        """Record one measurement."""
        key = (measurement.metric.name, measurement.labels)
        if (record := self._records.get(key)) is None:
            record = self._records[key] = self._made(measurement.metric, measurement.labels)
        record(measurement.value)

    def measure(self, metric: Metric, *labels: str, value: float = 1) -> None:
        """Record one value of the metric."""
        self.record(Measurement(metric, labels, value))

    def _made(self, metric: Metric, labels: tuple[str, ...]) -> _Record:
        given = dict(zip(metric.labels, labels, strict=True))
        match metric.kind:
            case "counter":
                counter = self._meter.create_counter(metric.name, metric.help).with_additional_attributes(given)
                return lambda value: counter.add(round(value))
            case "histogram":
                histogram = self._meter.create_histogram_float(metric.name, metric.help)
                return histogram.with_additional_attributes(given).record
            case "gauge":
                return self._meter.create_gauge_float(metric.name, metric.help).with_additional_attributes(given).set


@dataclass(frozen=True, slots=True)
class MeasuredProviders:
    """`Providers` whose calls are measured."""

    providers: Providers
    meters: Meters

    def resolve(self, model: str) -> tuple[LLMProvider, str]:
        """See the port."""
        provider, name = self.providers.resolve(model)
        return _Measured(provider, model_labels(model), self.meters), name

    def check_options(self, model: str, options: ModelOptions) -> None:
        """See the port."""
        self.providers.check_options(model, options)


@dataclass(frozen=True, slots=True)
class _Measured:
    provider: LLMProvider
    model: tuple[str, str]
    meters: Meters

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """See the port."""
        begun, heard = perf_counter(), False

        def first_heard(piece: str) -> None:
            nonlocal heard
            if not heard:
                heard = True
                self.meters.measure(metrics.FIRST_TOKEN, *self.model, value=perf_counter() - begun)
            on_delta(piece)

        outcome = "cancelled"
        try:
            answer = await self.provider.answer(call, first_heard)
            outcome = "answered"
            return answer
        except LoomError as error:
            outcome = type(error).__name__ if type(error).__name__ in BY_NAME else "other"
            raise
        finally:
            self.meters.measure(metrics.LLM_DURATION, *self.model, outcome, value=perf_counter() - begun)


@dataclass(frozen=True, slots=True)
class MeasuredPermits:
    """`Permits` whose waits are measured."""

    permits: Permits
    meters: Meters

    async def take(self, request: PermitRequest) -> Permit | Wait:
        """See the port."""
        found = await self.permits.take(request)
        model = model_labels(request.model)
        if isinstance(found, Wait):
            self.meters.measure(metrics.PERMIT_WAIT, *model, found.reason, value=found.seconds)
        is_open = found.reason == "open" if isinstance(found, Wait) else found.probes
        self.meters.measure(metrics.BREAKER_OPEN, *model, value=float(is_open))
        return found

    async def settle(self, permit: Permit, outcome: Outcome) -> None:
        """See the port."""
        await self.permits.settle(permit, outcome)
        if permit.probes and outcome.kind == "answered":
            self.meters.measure(metrics.BREAKER_OPEN, *model_labels(permit.request.model), value=0.0)


@dataclass(frozen=True, slots=True)
class MeasuredStream:
    """An `EventStream` whose losses are counted."""

    stream: EventStream
    meters: Meters

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """See the port."""
        try:
            return await self.stream.publish(tasks, segment)
        except StreamAbsent:
            raise
        except (StreamUnavailable, asyncio.CancelledError):  # a write that takes too long is cancelled
            self.meters.measure(metrics.STREAM_DROPS, value=len(tasks))
            raise
