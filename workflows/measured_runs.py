"""A worker's interceptor: it measures runs from the events that change their state.

A run is measured while it goes on, not while it is replayed. What is measured has no effect on the run. If a workflow
task times out or is rejected, Temporal executes it again, and that is no replay. Nor is it one if an ended run is reset
to its last workflow task, so that it can go on. A worker therefore remembers what it has measured in the latest turns
of each execution, by the id that a reset preserves.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeAlias

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from loom.activities.metering import Meters
from loom.domain.core import metrics
from loom.domain.core.metrics import Measurement
from loom.domain.core.requests import RunResult
from loom.domain.machine.measurements import measured, measured_at_end
from loom.domain.run.events import Event, TurnBegan
from loom.domain.run.state import Phase, RunState
from loom.workflows.agent_run import AgentRun

_Turns: TypeAlias = dict[int, frozenset[tuple[str, int]]]
"""By turn, what stays the same if an event happens again: its type, and its number among the events of this type. Its
time doesn't, nor its place between signals.
"""
_REMEMBERED: Final = 10_000
"""Number of executions."""


class MeasuredRuns(Interceptor):
    """Measures the runs of a worker."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._counted: dict[str, _Turns] = {}

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        meters, counted = self._meters, self._counted

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
                run = workflow.instance()
                if isinstance(run, AgentRun):
                    run.observer = RunMeter(meters, counted, workflow.info().original_execution_run_id)
                return await super().execute_workflow(input)

        return Inbound


@contextmanager
def _harmless() -> Iterator[None]:
    """Log what goes wrong. Otherwise the workflow task would fail, and fail again whenever it is tried."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, it is no fault of the run
        workflow.logger.exception("a run couldn't be measured")


class RunMeter:
    """Measures one run."""

    def __init__(self, meters: Meters, counted: dict[str, _Turns], execution: str) -> None:
        """`counted` has what this worker has measured, for each execution."""
        self._meters = meters
        self._counted = counted
        self._execution = execution
        self._turn = 0
        self._numbers: Counter[str] = Counter()
        """The events of this turn, by type, replayed ones included."""
        self._turn_began: datetime | None = None
        """None before the first turn of this execution, and between two turns."""
        self._last: RunState | None = None

    def advanced(self, before: RunState, event: Event, after: RunState) -> None:
        """Measure what an event counts. An event that changes nothing is ignored."""
        if before is after:
            return
        with _harmless():
            at, is_new = workflow.now(), self._is_new(type(event).__name__, before.turn)
            if is_new:
                # The end of a run changes its calls without an event.
                self._record(measured(self._last or before, event, after, at))
            if isinstance(event, TurnBegan) and after.turns > before.turns:
                self._end_turn(after, at, is_new)
                self._turn_began = at
            elif after.outcome is not None or (after.phase is Phase.READY and before.phase is not Phase.READY):
                self._end_turn(after, at, is_new)
        self._last = after

    def ended(self, result: RunResult) -> None:
        """Measure the end of the run."""
        if self._last is not None and self._is_new(f"{result.status} {result.retries}", self._last.turn):
            with _harmless():
                self._record(measured_at_end(self._last, result, workflow.now()))

    def _is_new(self, name: str, turn: int) -> bool:
        """Return whether an event is neither replayed nor measured before."""
        if turn != self._turn:
            self._turn, self._numbers = turn, Counter()
        self._numbers[name] += 1
        if workflow.unsafe.is_replaying():
            return False
        key, known = (name, self._numbers[name]), self._counted.get(self._execution, {})
        of_turn = known.get(turn, frozenset())
        if key in of_turn:
            return False
        if len(self._counted) > _REMEMBERED:
            self._counted.clear()
        latest = {each: keys for each, keys in known.items() if each >= turn - 1}
        self._counted[self._execution] = latest | {turn: of_turn | {key}}
        return True

    def _end_turn(self, state: RunState, at: datetime, is_new: bool) -> None:
        if self._turn_began is not None and is_new:
            took = max(0.0, (at - self._turn_began).total_seconds())
            self._meters.measure(metrics.ITERATION_DURATION, state.request.agent, value=took)
        self._turn_began = None

    def _record(self, measurements: Iterable[Measurement]) -> None:
        for each in measurements:
            self._meters.record(each)
