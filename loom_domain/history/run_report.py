"""Where a run's time, tokens and money went, computed from its tasks.

    spans    what happened from when to when: model calls, tool calls, sub-agents, and what the run waited for
    time     the run's whole duration, divided among the kinds of spans; `other` is Loom and Temporal themselves
    turns, tools, models, waits, sub_agents
             the same figures, added up

The tasks can come from the stream or be rebuilt from history. Each run reports its own work. The reports of its
sub-agents are nested in it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.errors import CircuitBreakerOpenError, NoPermitError
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import FINAL_ACTIONS, SHOWN_ONLY, Action, Task
from loom.domain.history.advice import Advice, advice_for, figures_of

Kind: TypeAlias = Literal[
    "tool",
    "model",
    "compression",
    "lost",
    "sub_agent",
    "paused",
    "ended",
    "provider",
    "operator",
    "permit",
    "retry",
    "approval",
    "question",
    "start",
]
"""What a span stands for. Work comes first, then waits. If several spans overlap, the time counts for the first kind.

`lost` is a model call whose worker died, `permit` a wait for a rate limit or a circuit breaker, `retry` the delay after
a failed model call, `ended` the time between an end of the run and the retry that continued it, and `start` the time
until a worker has prepared the run.
"""

ORDER: Final[tuple[Kind, ...]] = Kind.__args__  # type: ignore[attr-defined]
WAITS: Final[tuple[Kind, ...]] = ORDER[ORDER.index("paused") :]
"""The kinds that are waits of the run."""
OTHER: Final = "other"

_PERMITS: Final = (NoPermitError.__name__, CircuitBreakerOpenError.__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSpan:
    """Something that took time."""

    kind: Kind
    label: str
    began: datetime
    ended: datetime
    turn: int = 0
    status: str = "completed"
    by: str = ""
    """The person who ended the wait."""
    is_open: bool = False
    """Whether it hasn't ended yet. `ended` is then the time of the report."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max((self.ended - self.began).total_seconds(), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """Model calls and what they used."""

    model_calls: int = 0
    failed: int = 0
    """The model calls that failed. Their tokens are unknown."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    """US dollars, without the calls that have no known price."""
    unpriced: int = 0
    """The number of answered calls whose price is unknown."""
    seconds: float = 0.0

    def __add__(self, other: "Spending") -> "Spending":
        """Add two field by field."""
        return Spending(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnReport:
    """One turn."""

    number: int
    began: datetime
    seconds: float
    time: Mapping[str, float]
    """Seconds by kind of span. They add up to `seconds`."""
    spending: Spending
    tool_calls: int
    failed_tool_calls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolReport:
    """The calls of one tool."""

    name: str
    calls: int
    failed: int
    attempts: int
    """Attempts that workers began. A call that was never run has none."""
    seconds: float
    longest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReport:
    """The calls of one model."""

    name: str
    spending: Spending
    longest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitReport:
    """The waits of one kind."""

    kind: Kind
    count: int
    seconds: float
    """The waits together, even if several overlap."""
    longest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SubAgentReport:
    """A run that this run delegated work to."""

    run_id: str
    agent: str
    description: str
    status: str
    turn: int
    seconds: float
    report: "RunReport | None" = None
    """None if the history of the sub-agent isn't available."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """Where a run's time, tokens and money went."""

    run_id: str
    """The run's id, which is also its Workflow ID."""
    agent: str
    """The name of the run's agent."""
    status: str
    """A value of `RunStatus`."""
    task: str
    """The run's task."""
    began: datetime
    """When the run was started, in UTC."""
    ended: datetime
    """For a run in progress, the time of the report."""
    time: Mapping[str, float]
    """Seconds by kind of span, and `other`. They add up to the run's duration."""
    spending: Spending
    """The run's own model calls and compressions, without its sub-agents."""
    total: Spending
    """The same with all sub-agents that have a report."""
    used: Mapping[str, Any] | None
    """`usage`, `cost` and `tool_calls` of the run's result, which include sub-agents and failed calls. None for a run
    in progress.
    """
    turns: tuple[TurnReport, ...]
    """One entry for each turn, in order."""
    tools: tuple[ToolReport, ...]
    """One entry for each tool, the one that took longest first."""
    models: tuple[ModelReport, ...]
    """One entry for each model, in the order of their first calls."""
    waits: tuple[WaitReport, ...]
    """One entry for each kind of wait that occurred."""
    sub_agents: tuple[SubAgentReport, ...]
    """The runs directly below, in the order in which they started."""
    spans: tuple[ReportSpan, ...]
    """Everything that took time, for a timeline."""
    advice: tuple[Advice, ...] = ()
    """What would make such runs faster or cheaper."""
    error: Mapping[str, Any] | None = None
    """`type`, `message` and `context` of the run's error. None if it has none."""
    workspace: Mapping[str, Any] | None = None
    """The run's repository and the change to it, as in its result. None if it works in a folder."""

    @property
    def seconds(self) -> float:
        """The run's duration."""
        return max((self.ended - self.began).total_seconds(), 0.0)


def run_report(
    tasks: Iterable[Task],
    *,
    run_id: str,
    now: datetime,
    began: datetime | None = None,
    sub_agents: Mapping[str, RunReport] | None = None,
    advised: Iterable[Task] | None = None,
) -> RunReport:
    """Return the report of a run, from its tasks in the order of their creation.

    Args:
        tasks: The tasks. Tasks of other runs and fragments of text are ignored.
        run_id: The run.
        now: The end of everything that hasn't ended.
        began: When the run was started. If None, when it was prepared.
        sub_agents: The reports of the run's sub-agents, by run id.
        advised: The tasks that the advice is about. If None, those of this run.
    """
    own = sorted(
        (task for task in tasks if task.run_id == run_id and task.action not in SHOWN_ONLY),
        key=lambda task: task.created_at,
    )
    last = own[-1] if own and own[-1].action in FINAL_ACTIONS else None
    start = min((at for at in (began, *(task.created_at for task in own[:1])) if at), default=now)
    end = max(last.created_at if last else now, start)
    reading = _Reading(end=end)
    for task in own:
        reading.take(task)
    prepared = next((task for task in own if task.action is Action.START), None)
    spans = tuple(sorted(_within((*_beginning(start, own), *reading.finished()), start, end), key=lambda s: s.began))
    below = sub_agents or {}
    spending = sum((spent for _, _, spent in reading.spent), Spending())
    result = dict(last.result or {}) if last else {}
    return RunReport(
        run_id=run_id,
        agent=own[0].source_agent if own else "",
        status=str(result.get("status") or (last.status if last else RunStatus.RUNNING)),
        task=str(prepared.parameters.get("task", "")) if prepared else "",
        began=start,
        ended=end,
        time=shares(spans, start, end),
        spending=spending,
        total=sum((report.total for report in below.values()), spending),
        used={name: result.get(name) for name in ("usage", "cost", "tool_calls")} if result else None,
        turns=tuple(_turns(reading, spans, end)),
        tools=tuple(_tools(reading, spans)),
        models=tuple(_models(reading)),
        waits=tuple(_waits(spans)),
        sub_agents=tuple(_sub_agents(reading, below, end)),
        spans=spans,
        advice=advice_for(figures_of(own if advised is None else advised)),
        error=result.get("error"),
        workspace=next((task.parameters for task in reversed(own) if task.action is Action.WORKSPACE), None),
    )


def shares(spans: Sequence[ReportSpan], start: datetime, end: datetime) -> dict[str, float]:
    """Divide the time from `start` to `end` among the kinds of spans. Each moment counts once."""
    marks = sorted({start, end, *(at for span in spans for at in (span.began, span.ended) if start < at < end)})
    changes: dict[datetime, list[tuple[Kind, int]]] = {}
    for span in spans:
        if span.ended > start and span.began < end:
            changes.setdefault(max(span.began, start), []).append((span.kind, 1))
            changes.setdefault(min(span.ended, end), []).append((span.kind, -1))
    active = dict.fromkeys(ORDER, 0)
    found: dict[str, float] = {}
    for here, there in pairwise(marks):
        for kind, change in changes.get(here, ()):
            active[kind] += change
        name = next((kind for kind in ORDER if active[kind]), OTHER)
        found[name] = found.get(name, 0.0) + (there - here).total_seconds()
    return {name: found[name] for name in (*ORDER, OTHER) if name in found}


class _Reading:
    """Pairs the tasks that begin something with those that end it."""

    def __init__(self, *, end: datetime) -> None:
        self._end = end
        self._spans: list[ReportSpan] = []
        self._open: dict[tuple[str, str], ReportSpan] = {}
        """What has begun. `ended` isn't known yet."""
        self._turn = 0
        self.turns: dict[int, datetime] = {}
        self.spent: list[tuple[int, str, Spending]] = []
        """The turn, the model and the spending of each model call."""
        self.tool_results: list[tuple[int, str, str]] = []
        """The turn, the tool and the status of each result."""
        self.children: dict[str, tuple[str, str, int, datetime]] = {}
        self.child_ends: dict[str, tuple[str, datetime]] = {}

    def take(self, task: Task) -> None:  # noqa: C901, PLR0912, PLR0915 - one case an action
        said, at = task.parameters, task.created_at
        call_id = str(said.get("call_id", ""))
        match task.action:
            case Action.TURN:
                self._turn_began(int(said.get("to") or 0), at)
            case Action.MODEL_CALL:
                self._model_called(task)
            case Action.COMPRESSION:
                began = at - _span_of(said.get("duration_ms"))
                span = ReportSpan(kind="compression", label="compression", began=began, ended=at, turn=self._turn)
                self._spans.append(span)
                if said.get("model"):
                    self.spent.append((self._turn, str(said["model"]), _spent_by(task, span)))
            case Action.TOOL_CALL:
                self._close(("tool", call_id), at, "lost")  # an attempt whose worker died
                self._begin(("tool", call_id), "tool", str(said.get("tool", "")), at)
            case Action.EXECUTE:
                child = str(said.get("child_run_id", ""))
                self.children[child] = (str(said.get("agent")), str(said.get("description")), self._turn, at)
                self._begin(("tool", call_id), "sub_agent", f"{said.get('agent')}: {said.get('description')}", at)
            case Action.TOOL_RESULT:
                self._close(("tool", call_id), at, task.status)
                self._close(("approval", call_id), at, task.status)  # a person can no longer decide
                self.tool_results.append((int(said.get("turn") or self._turn), str(said.get("tool", "")), task.status))
                if "child_run_id" in said:
                    self.child_ends[str(said["child_run_id"])] = (task.status, at)
            case Action.APPROVAL_REQUESTED:
                self._begin(("approval", call_id), "approval", str(said.get("tool", "")), at)
            case Action.APPROVAL_DECIDED:
                decided = "approved" if said.get("approved") else "denied"
                self._close(("approval", call_id), at, decided, by=str(said.get("by", "")))
            case Action.MESSAGE if call_id:
                self._begin(("question", ""), "question", str(said.get("text", "")), at)
            case Action.MESSAGE:
                self._close(("question", ""), at, "answered", by=str(said.get("by", "")))
            case Action.PAUSED:
                self._begin(("paused", ""), "paused", "paused", at)
            case Action.RESUMED:
                self._close(("paused", ""), at, by=str(said.get("by", "")))
            case Action.PARKED:
                kind: Kind = "operator" if said.get("waiting_on") == "operator" else "provider"
                self._close(("parked", ""), at)
                self._begin(("parked", ""), kind, str(said.get("error", "")), at)
            case Action.UNPARKED:
                self._close(("parked", ""), at, by=str(said.get("by", "")))
            case Action.COMPLETE | Action.ERROR:
                self._close_all(at)
                self._begin(("ended", ""), "ended", str(task.status), at)
            case Action.RETRIED:
                self._close(("ended", ""), at, "retried", by=str(said.get("by", "")))
            case _:
                pass

    def finished(self) -> Iterator[ReportSpan]:
        """Return all spans, including those that haven't ended."""
        yield from self._spans
        open_ones = (span for span in self._open.values() if span.kind != "ended")
        yield from (replace(span, ended=self._end, is_open=True) for span in open_ones)

    def _turn_began(self, number: int, at: datetime) -> None:
        if (lost := self._open.pop(("model", str(number)), None)) is not None:  # its attempt ended without a word
            self._spans.append(replace(lost, kind="lost", ended=at, status="lost"))
        self._close(("retry", ""), at)
        self._close(("question", ""), at, "answered")
        if number != self._turn:
            self._turn = number
            self.turns.setdefault(number, at)
        self._begin(("model", str(number)), "model", f"turn {number}", at)

    def _model_called(self, task: Task) -> None:
        said, at = task.parameters, task.created_at
        failed, purpose = task.status == "failed", str(said.get("purpose") or "")
        name, turn, error = str(said.get("model", "")), int(said.get("turn") or self._turn), str(said.get("error", ""))
        began = at - _span_of(said.get("ms"))
        opened = None if purpose else self._open.pop(("model", str(turn)), None)
        if failed and opened is not None:
            began = opened.began
        is_unsent = error in _PERMITS
        label = f"{name} ({purpose})" if purpose else name
        span = ReportSpan(kind="model", label=error or label, began=began, ended=at, turn=turn, status=task.status)
        self._spans.append(replace(span, kind="permit") if is_unsent else span)
        if failed and not purpose:
            self._begin(("retry", ""), "permit" if is_unsent else "retry", error, at)
        if is_unsent:
            return
        self.spent.append((turn, name, _spent_by(task, span)))

    def _begin(self, key: tuple[str, str], kind: Kind, label: str, at: datetime) -> None:
        self._open.setdefault(key, ReportSpan(kind=kind, label=label, began=at, ended=at, turn=self._turn))

    def _close(self, key: tuple[str, str], at: datetime, status: str = "completed", *, by: str = "") -> None:
        if (opened := self._open.pop(key, None)) is not None:
            self._spans.append(replace(opened, ended=at, status=status, by=by))

    def _close_all(self, at: datetime) -> None:
        for key in list(self._open):
            self._close(key, at, "ended")


def _spent_by(task: Task, span: ReportSpan) -> Spending:
    """Return what a task tells of one model call, or of a compression, which may have needed several."""
    said, failed = task.parameters, task.status == "failed"
    calls, cost = int(said.get("model_calls") or 1), said.get("cost")
    return Spending(
        model_calls=calls,
        failed=calls if failed else 0,
        input_tokens=int(said.get("input_tokens") or 0),
        output_tokens=int(said.get("output_tokens") or 0),
        cached_tokens=int(said.get("cached_tokens") or 0),
        cost=float(cost or 0.0),
        unpriced=calls if cost is None and not failed else 0,
        seconds=span.seconds,
    )


def _beginning(start: datetime, own: Sequence[Task]) -> Iterator[ReportSpan]:
    first = next((task.created_at for task in own if task.action is Action.START), None)
    if first is not None and first > start:
        yield ReportSpan(kind="start", label="until a worker prepared the run", began=start, ended=first)


def _within(spans: Iterable[ReportSpan], start: datetime, end: datetime) -> Iterator[ReportSpan]:
    """Yield the spans that lie in the run's duration. Clocks of workers and of the server may differ."""
    for span in spans:
        began, ended = min(max(span.began, start), end), max(min(span.ended, end), start)
        yield replace(span, began=began, ended=max(began, ended))


def _turns(reading: _Reading, spans: Sequence[ReportSpan], end: datetime) -> Iterator[TurnReport]:
    begun = sorted(reading.turns.items())
    spans_in = defaultdict[int, list[ReportSpan]](list)
    spent_in = defaultdict[int, list[Spending]](list)
    results_in = defaultdict[int, list[str]](list)
    for span in spans:
        spans_in[span.turn].append(span)
    for turn, _, spent in reading.spent:
        spent_in[turn].append(spent)
    for turn, _, status in reading.tool_results:
        results_in[turn].append(status)
    for (number, began), (_, until) in zip(begun, [*begun[1:], (0, end)], strict=False):
        ended = max(until, began)
        results = results_in[number]
        yield TurnReport(
            number=number,
            began=began,
            seconds=(ended - began).total_seconds(),
            time=shares(spans_in[number], began, ended),
            spending=sum(spent_in[number], Spending()),
            tool_calls=len(results),
            failed_tool_calls=results.count("error"),
        )


def _tools(reading: _Reading, spans: Sequence[ReportSpan]) -> Iterator[ToolReport]:
    took, statuses = defaultdict[str, list[float]](list), defaultdict[str, list[str]](list)
    for span in spans:
        if span.kind == "tool":
            took[span.label].append(span.seconds)
    for _, name, status in reading.tool_results:
        statuses[name].append(status)
    found = [
        ToolReport(
            name=name,
            calls=len(statuses[name]),
            failed=statuses[name].count("error"),
            attempts=len(took[name]),
            seconds=sum(took[name]),
            longest=max(took[name], default=0.0),
        )
        for name in (*statuses, *(name for name in took if name not in statuses))
    ]
    yield from sorted(found, key=lambda tool: -tool.seconds)


def _models(reading: _Reading) -> Iterator[ModelReport]:
    for name in dict.fromkeys(name for _, name, _ in reading.spent):
        calls = [spent for _, model, spent in reading.spent if model == name]
        longest = max(call.seconds for call in calls)
        yield ModelReport(name=name, spending=sum(calls, Spending()), longest=longest)


def _waits(spans: Sequence[ReportSpan]) -> Iterator[WaitReport]:
    for kind in WAITS:
        seconds = [span.seconds for span in spans if span.kind == kind]
        if seconds:
            yield WaitReport(kind=kind, count=len(seconds), seconds=sum(seconds), longest=max(seconds))


def _sub_agents(reading: _Reading, below: Mapping[str, RunReport], end: datetime) -> Iterator[SubAgentReport]:
    for run_id, (agent, description, turn, began) in reading.children.items():
        report = below.get(run_id)
        status, ended = reading.child_ends.get(run_id, ("running", end))
        yield SubAgentReport(
            run_id=run_id,
            agent=agent,
            description=description,
            status=report.status if report else status,
            turn=turn,
            seconds=max((ended - began).total_seconds(), 0.0),
            report=report,
        )


def _span_of(milliseconds: object) -> timedelta:
    return timedelta(milliseconds=float(milliseconds)) if isinstance(milliseconds, int | float) else timedelta()
