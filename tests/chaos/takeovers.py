"""How long it took until another worker went on with lost activities, and what each long wait consisted of.

death ──────────▶ timed out ─────────────────────────────▶ scheduled again ─────▶ started
       timeout               workflow tasks, retry delay, pause              queue

An activity that Temporal itself retries has no events of its lost attempts: its whole wait is the server's retry.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final

from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from tests.chaos.storm import Fault, Storm
from tests.chaos.verdict import step_of

LONG: Final = 10.0
"""Seconds after which a takeover is explained."""
TOLD: Final = 4
"""How many takeovers of each kind are explained in a round."""
NO_SERVER: Final = "temporal down"
NO_WORKER: Final = "no worker living"
NOISE: Final = 0.5
"""Seconds that aren't worth a word."""


@dataclass(frozen=True, kw_only=True)
class Takeover:
    """An activity that was lost, and started again."""

    run_id: str
    step: str
    seconds: float
    waits: Mapping[str, float]
    """The parts of its wait, in seconds. Their sum is the whole wait."""
    meanwhile: Mapping[str, float]
    """For how many of these seconds what was away."""

    def line(self) -> str:
        """The takeover on a line."""
        return f"{self.run_id} {self.step}: {self.seconds:.1f} s = {_told(self.waits, ' + ')}; " + (
            f"meanwhile {_told(self.meanwhile, ', ')}" if self.meanwhile else "nothing else was away"
        )


@dataclass(frozen=True, kw_only=True)
class _Lost:
    since: datetime
    timed_out: datetime
    label: str


@dataclass
class _Reader:
    """Reads a run's events one after the other."""

    storm: Storm
    scheduled: dict[int, HistoryEvent] = field(default_factory=dict)
    started: dict[int, HistoryEvent] = field(default_factory=dict)
    lost: dict[str, _Lost] = field(default_factory=dict)
    tasks: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    """What workflow tasks were and did, from when until when."""
    _task: datetime | None = None
    """Since when the current workflow task has been in its queue or with its worker."""

    def read(self, run_id: str, events: Iterable[HistoryEvent]) -> Iterator[Takeover]:
        """Yield the takeovers in these events."""
        for event in events:
            self._note_workflow_task(event)
            if event.HasField("activity_task_scheduled_event_attributes"):
                self.scheduled[event.event_id] = event
            elif event.HasField("activity_task_timed_out_event_attributes"):
                self._note_loss(event)
            elif event.HasField("activity_task_started_event_attributes"):
                self.started[event.activity_task_started_event_attributes.scheduled_event_id] = event
                if (takeover := self._takeover(run_id, event)) is not None:
                    yield takeover

    def _note_workflow_task(self, event: HistoryEvent) -> None:
        at = _at(event)
        if event.HasField("workflow_task_scheduled_event_attributes"):
            self._task = self._task or at  # one that was lost goes on, and the server notes its next attempt late
        elif self._task is not None and (name := _end_of_task(event)):
            self.tasks.append((name, self._task, at))
            self._task = None if event.HasField("workflow_task_completed_event_attributes") else at

    def _note_loss(self, event: HistoryEvent) -> None:
        ended = event.activity_task_timed_out_event_attributes
        scheduled, started = self.scheduled[ended.scheduled_event_id], self.started.get(ended.scheduled_event_id)
        kind, step = _timeout_of(ended.failure), _step(scheduled)
        if kind == "schedule-to-start" or started is None:  # only one worker could have run it
            self.lost[step] = _Lost(since=_at(scheduled), timed_out=_at(event), label=f"{kind} timeout")
            return
        begun = _at(started)
        died = self._death_of(started.activity_task_started_event_attributes.identity)
        if died is not None and died.since < _at(event):
            label = f"{kind} timeout" if begun < died.since else f"{kind} timeout of an attempt given to a dead worker"
            since = max(begun, died.since)
        else:  # its worker lives, but couldn't say so
            silence = scheduled.activity_task_scheduled_event_attributes.heartbeat_timeout.ToTimedelta()
            since, label = max(begun, _at(event) - silence), f"{kind} timeout although the worker lived"
        self.lost[step] = _Lost(since=since, timed_out=_at(event), label=label)

    def _death_of(self, identity: str) -> Fault | None:
        """Return the death of the worker with this identity, which begins with its process id."""
        deaths = (fault for fault in self.storm.log if fault.kind == "kill worker")
        return next((fault for fault in deaths if identity.startswith(f"{fault.pid}@")), None)

    def _takeover(self, run_id: str, started: HistoryEvent) -> Takeover | None:
        attributes, until = started.activity_task_started_event_attributes, _at(started)
        scheduled = self.scheduled[attributes.scheduled_event_id]
        step, waits = _step(scheduled), defaultdict[str, float](float)
        if (lost := self.lost.pop(step, None)) is not None:
            since = lost.since
            waits[lost.label] = _seconds(lost.timed_out, since)
            between = _seconds(_at(scheduled), lost.timed_out)
            for name, begin, end in self.tasks:
                waits[name] += max(0.0, _seconds(min(end, _at(scheduled)), max(begin, lost.timed_out)))
            waits["retry delay or pause"] = between - sum(waits[name] for name in {name for name, _, _ in self.tasks})
            waits["queue"] = _seconds(until, _at(scheduled))
        elif attributes.attempt > 1 and (kind := _timeout_of(attributes.last_failure)):
            deaths = [each.since for each in self.storm.log if each.kind == "kill worker"]
            since = min((each for each in deaths if _at(scheduled) < each < until), default=until)
            if since == until:
                return None
            waits[f"{kind} timeout and the server's retry"] = _seconds(until, since)
        else:
            return None
        return Takeover(
            run_id=run_id,
            step=step,
            seconds=_seconds(until, since),
            waits={name: seconds for name, seconds in waits.items() if seconds > 0},
            meanwhile=_meanwhile(self.storm, since, until),
        )


def takeovers(storm: Storm, run_id: str, chain: Sequence[WorkflowHistory]) -> Iterator[Takeover]:
    """Yield the takeovers in the executions of a run."""
    for history in chain:
        yield from _Reader(storm).read(run_id, history.events)


def _meanwhile(storm: Storm, since: datetime, until: datetime) -> dict[str, float]:
    names = {
        "kill temporal": NO_SERVER,
        "kill redis": "redis down",
        "kill postgres": "postgres down",
        "stop worker": "a worker stopped",
    }
    away = defaultdict[str, float](float)
    for fault in storm.log:
        if (name := names.get(fault.kind)) is not None and (seconds := fault.seconds_within(since, until)) > 0:
            away[name] += seconds
        elif fault.kind == "kill worker" and since < fault.since < until:
            away["deaths of other workers"] += 1
    for begin, end in storm.without_worker():
        if (seconds := _seconds(min(end, until), max(begin, since))) > 0:
            away[NO_WORKER] += seconds
    return dict(away)


def _end_of_task(event: HistoryEvent) -> str:
    """Return what a workflow task has just done, if this event ends it or its time in the queue."""
    if event.HasField("workflow_task_started_event_attributes"):
        return "workflow task in queue"
    if event.HasField("workflow_task_completed_event_attributes"):
        return "workflow task"
    if event.HasField("workflow_task_failed_event_attributes"):
        return "failed workflow task"
    if event.HasField("workflow_task_timed_out_event_attributes"):
        return f"workflow task lost ({_named(event.workflow_task_timed_out_event_attributes.timeout_type)})"
    return ""


def _timeout_of(failure: Failure) -> str:
    """Return the kind of timeout that a failure or its cause is, or an empty string."""
    if failure.HasField("timeout_failure_info"):
        return _named(failure.timeout_failure_info.timeout_type)
    return ""


def _named(kind: "TimeoutType.ValueType") -> str:
    return TimeoutType.Name(kind).removeprefix("TIMEOUT_TYPE_").lower().replace("_", "-")


def _step(scheduled: HistoryEvent) -> str:
    attributes = scheduled.activity_task_scheduled_event_attributes
    return f"{attributes.activity_type.name} {step_of(attributes.activity_id)}"


def _at(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(UTC)


def _seconds(later: datetime, earlier: datetime) -> float:
    return (later - earlier) / timedelta(seconds=1)


def _told(parts: Mapping[str, float], between: str) -> str:
    loud = [(name, amount) for name, amount in parts.items() if amount >= NOISE]
    return between.join(f"{name} {amount:.1f}" for name, amount in sorted(loud, key=lambda each: -each[1]))


def by_outage(found: Sequence[Takeover]) -> dict[str, list[Takeover]]:
    """Return the takeovers by whether the Temporal server was down and whether a worker lived in the meantime."""
    names = {
        (False, False): "server and a worker up",
        (True, False): "server down meanwhile",
        (False, True): "no worker meanwhile",
        (True, True): "neither meanwhile",
    }
    groups: dict[str, list[Takeover]] = {name: [] for name in names.values()}
    for each in found:
        groups[names[NO_SERVER in each.meanwhile, NO_WORKER in each.meanwhile]].append(each)
    return groups


def longest(found: Sequence[Takeover]) -> list[Takeover]:
    """Return the longest takeovers of each kind that are long enough to be explained."""
    sorted_ = (sorted(group, key=lambda each: -each.seconds) for group in by_outage(found).values())
    return [each for group in sorted_ for each in group[:TOLD] if each.seconds > LONG]


def summary(found: Sequence[Takeover]) -> str:
    """Number, median, 95th percentile and most, of all and by what was away in the meantime."""
    parts = {"all": found, **by_outage(found)}
    return "; ".join(f"{name}: {figures([each.seconds for each in some])}" for name, some in parts.items())


def figures(seconds: Sequence[float]) -> str:
    """Number, median, 95th percentile and most of some times."""
    if not seconds:
        return "0"
    times = sorted(seconds)
    p95 = times[int(len(times) * 0.95)]
    return f"{len(times)} after {median(times):.1f} s (p95 {p95:.1f}, most {times[-1]:.1f})"
