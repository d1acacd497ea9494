"""Compute an agent's statistics from the runs that the Temporal server lists. Loom doesn't store statistics."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from loom.domain.core.requests import RunStatus


class NodeState(StrEnum):
    """An agent's state: `running` while any of its runs is in progress, otherwise the outcome of its last run."""

    IDLE = "idle"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One execution of a run. A run that continued as new has several executions, which are counted as one run."""

    status: str
    started_at: datetime
    closed_at: datetime | None = None
    goes_on: bool = False
    """Whether the execution continued as new. If so, the next execution belongs to the same run and adds to the run's
    duration.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStats:
    """An agent's state and statistics."""

    state: NodeState = NodeState.IDLE
    """`running` while any run is in progress, otherwise the outcome of the last run. `idle` if there is none to tell.
    """
    execution_count: int = 0
    """The number of runs, including runs in progress."""
    running_count: int = 0
    """The number of runs in progress."""
    success_count: int = 0
    """The number of completed runs."""
    failure_count: int = 0
    """The number of failed runs. Runs that were aborted or reached a limit aren't included."""
    total_duration: float = 0.0
    """The total duration of all ended runs in seconds, including waiting times."""
    last_execution: datetime | None = None
    """The start time of the newest run."""
    is_complete: bool = True
    """Whether all runs were examined. If False, the figures cover only the newest runs."""


def stats_of(executions: Sequence[Execution], *, is_complete: bool = True) -> AgentStats:
    """Return the statistics for these executions, which must be ordered from newest to oldest."""
    runs = [each for each in executions if not each.goes_on]
    counts = {
        status: sum(run.status == status and run.closed_at is not None for run in runs)
        for status in (RunStatus.COMPLETED, RunStatus.FAILED)
    }
    running = sum(run.closed_at is None for run in runs)
    ended = [each for each in executions if each.closed_at is not None]
    return AgentStats(
        state=_state(runs),
        execution_count=len(runs),
        running_count=running,
        success_count=counts[RunStatus.COMPLETED],
        failure_count=counts[RunStatus.FAILED],
        total_duration=sum((each.closed_at - each.started_at).total_seconds() for each in ended if each.closed_at),
        last_execution=runs[0].started_at if runs else None,
        is_complete=is_complete,
    )


def _state(runs: Sequence[Execution]) -> NodeState:
    """Return the agent's state. A run that was aborted or reached a limit doesn't count as failed, so an agent whose
    last run ended that way is idle.
    """
    if any(run.closed_at is None for run in runs):
        return NodeState.RUNNING
    last = max(runs, key=lambda run: run.closed_at or run.started_at, default=None)
    if last is None or last.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
        return NodeState.IDLE
    return NodeState.COMPLETED if last.status == RunStatus.COMPLETED else NodeState.FAILED
