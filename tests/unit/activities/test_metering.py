"""What surrounds model calls, permits and the live stream measures them, and changes nothing of what they return."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest

from loom.activities.adapters.in_process_permits import InProcessPermits
from loom.activities.metering import MeasuredPermits, MeasuredStream
from loom.activities.model_permits import Outcome, Permit, PermitRequest, PermitRules, Wait
from loom.activities.ports import StreamAbsent, StreamUnavailable
from loom.domain.core import metrics
from loom.domain.core.tasks import Action, Origin, Segment, Task, task_of
from tests.seen_meters import SeenMeters

REQUEST: Final = PermitRequest(account="a", model="openai:m", session="s", caller="r", tokens=1)
TASK: Final = task_of(Origin(run_id="r", execution="e"), Action.TURN, "t1/turn", at=datetime(2026, 1, 1, tzinfo=UTC))


class FailingStream:
    """An `EventStream` that isn't there."""

    def __init__(self, error: StreamUnavailable) -> None:
        self.error = error

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        raise self.error


@pytest.mark.parametrize(("error", "lost"), [(StreamUnavailable("away"), 2), (StreamAbsent("none is set up"), 0)])
async def test_each_event_that_a_stream_could_not_take_is_counted(error: StreamUnavailable, lost: int) -> None:
    meters = SeenMeters()
    with pytest.raises(type(error)):
        await MeasuredStream(FailingStream(error), meters).publish([TASK, TASK])
    assert meters.total(metrics.STREAM_DROPS) == lost


async def test_a_breaker_is_measured_while_it_is_open_and_so_is_the_wait_of_the_calls_that_it_refuses() -> None:
    now, meters = 1_000_000, SeenMeters()
    permits = MeasuredPermits(InProcessPermits(PermitRules(failures=5), clock=lambda: now), meters)
    for number in range(5):
        permit = await permits.take(replace(REQUEST, caller=str(number)))
        assert isinstance(permit, Permit)
        await permits.settle(permit, Outcome(kind="failed"))
    refused = await permits.take(REQUEST)
    assert isinstance(refused, Wait)
    now += round(refused.seconds * 1000) + 60_000
    probe = await permits.take(REQUEST)
    assert isinstance(probe, Permit)
    await permits.settle(probe, Outcome(kind="answered"))

    assert meters.values(metrics.BREAKER_OPEN, "openai", "m") == [0] * 5 + [1, 1, 0]
    assert meters.values(metrics.PERMIT_WAIT, "openai", "m", "open") == [refused.seconds]
