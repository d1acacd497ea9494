"""What the chaos driver says of takeovers, by events as Temporal writes them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from tests.chaos.stories import Weather
from tests.chaos.storm import Fault, Storm
from tests.chaos.takeovers import Takeover, longest, summary, takeovers

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DEAD, OTHER = "7@host", "8@host"
HEARTBEAT = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
TO_START, TO_CLOSE = TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START, TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE


def event(number: int, seconds: float, kind: str, **attributes: Any) -> HistoryEvent:
    made = HistoryEvent(event_id=number)
    made.event_time.FromDatetime(BEGIN + timedelta(seconds=seconds))
    getattr(made, f"{kind}_event_attributes").SetInParent()
    for name, value in attributes.items():
        setattr(getattr(made, f"{kind}_event_attributes"), name, value)
    return made


def scheduled(number: int, seconds: float, activity_id: str) -> HistoryEvent:
    made = event(number, seconds, "activity_task_scheduled", activity_id=activity_id)
    made.activity_task_scheduled_event_attributes.activity_type.name = "run_tool"
    made.activity_task_scheduled_event_attributes.heartbeat_timeout.FromTimedelta(timedelta(seconds=2))
    return made


def lost(number: int, seconds: float, scheduled_event_id: int) -> HistoryEvent:
    made = event(number, seconds, "activity_task_timed_out", scheduled_event_id=scheduled_event_id)
    failure = made.activity_task_timed_out_event_attributes.failure
    failure.timeout_failure_info.timeout_type = HEARTBEAT
    return made


def started(number: int, seconds: float, scheduled_event_id: int, identity: str) -> HistoryEvent:
    return event(
        number, seconds, "activity_task_started", scheduled_event_id=scheduled_event_id, identity=identity, attempt=1
    )


TAKEN_OVER = [
    scheduled(1, 0, "t1-c1"),
    started(2, 1, 1, DEAD),
    lost(3, 5, 1),
    event(4, 5, "workflow_task_scheduled"),
    event(5, 6, "workflow_task_timed_out", timeout_type=TO_START),
    event(6, 6, "workflow_task_scheduled"),
    event(7, 6.5, "workflow_task_started"),
    event(8, 11.5, "workflow_task_timed_out", timeout_type=TO_CLOSE),
    event(9, 11.5, "workflow_task_scheduled"),
    event(10, 12, "workflow_task_started"),
    event(11, 12.5, "workflow_task_completed"),
    scheduled(12, 12.5, "t1-c1-2"),
    started(13, 14.5, 12, OTHER),
]


def fault(kind: str, since: float, until: float, pid: int = 0, place: int = 0) -> Fault:
    begin = BEGIN + timedelta(seconds=since)
    return Fault(kind=kind, since=begin, until=BEGIN + timedelta(seconds=until), pid=pid, place=place)


def found(*faults: Fault, workers: int = 2) -> list[Takeover]:
    nothing: Any = None
    storm = Storm(Path(), nothing, nothing, nothing, Weather(1), Random(1), living=[nothing] * workers)
    storm.log += faults
    return list(takeovers(storm, "run", [WorkflowHistory("run", TAKEN_OVER)]))


def test_a_takeover_is_the_sum_of_its_waits() -> None:
    (one,) = found(fault("kill worker", 3, 8, pid=7))

    assert one.waits == {
        "heartbeat timeout": 2.0,
        "workflow task lost (schedule-to-start)": 1.0,
        "workflow task in queue": 1.0,
        "workflow task lost (start-to-close)": 5.0,
        "workflow task": 0.5,
        "queue": 2.0,
    }
    assert one.seconds == sum(one.waits.values()) == 11.5
    assert one.meanwhile == {}
    assert one.line() == (
        "run run_tool t1-c1: 11.5 s = workflow task lost (start-to-close) 5.0 + heartbeat timeout 2.0 + queue 2.0"
        " + workflow task lost (schedule-to-start) 1.0 + workflow task in queue 1.0 + workflow task 0.5;"
        " nothing else was away"
    )


def test_a_takeover_says_what_was_away_meanwhile() -> None:
    (one,) = found(
        fault("kill worker", 3, 8, pid=7),
        fault("kill worker", 6, 9, pid=9, place=1),
        fault("kill temporal", 1, 4),
        fault("stop worker", 14, 20),
    )

    assert one.meanwhile == {
        "deaths of other workers": 1.0,
        "no worker living": 2.0,
        "temporal down": 1.0,
        "a worker stopped": 0.5,
    }
    assert summary([one]) == (
        "all: 1 after 11.5 s (p95 11.5, most 11.5); server and a worker up: 0; server down meanwhile: 0;"
        " no worker meanwhile: 0; neither meanwhile: 1 after 11.5 s (p95 11.5, most 11.5)"
    )
    assert longest([one]) == [one]


def test_an_attempt_whose_worker_lives_is_lost_since_its_last_heartbeat() -> None:
    (one,) = found()

    assert one.waits["heartbeat timeout although the worker lived"] == 2.0


def test_an_attempt_given_to_a_dead_worker_is_lost_from_its_start() -> None:
    (one,) = found(fault("kill worker", 0, 4, pid=7))

    assert one.waits["heartbeat timeout of an attempt given to a dead worker"] == 4.0
