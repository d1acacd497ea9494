"""Meters that keep what they record."""

from temporalio.common import MetricMeter

from loom.activities.metering import Meters
from loom.domain.core.metrics import Measurement, Metric


class SeenMeters(Meters):
    """Keeps each measurement."""

    def __init__(self) -> None:
        super().__init__(MetricMeter.noop)
        self.seen: list[Measurement] = []

    def record(self, measurement: Measurement) -> None:
        """Keep it."""
        self.seen.append(measurement)

    def total(self, metric: Metric, *labels: str) -> float:
        """The sum of the values, with these labels or any."""
        return sum(self.values(metric, *labels))

    def values(self, metric: Metric, *labels: str) -> list[float]:
        """The values, with these labels or any, in order."""
        return [each.value for each in self.seen if each.metric is metric and labels in ((), each.labels)]
