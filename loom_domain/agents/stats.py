"""Statistics of an agent, computed from the runs that the Temporal server knows. They are stored nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from loom.domain.core.requests import RunStatus


class NodeState(StrEnum):
    """The state of an agent: `running` while any of its runs is active, else how the last one ended."""

    IDLE = "idle"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """One execution of a run. Of the executions of a run that continued as new, only the last one counts as a run."""

    status: str
    started_at: datetime
    closed_at: datetime | None = None
    goes_on: bool = False
    """Whether it continued as new. The next execution belongs to the same run and continues its time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStats:
    """An agent's state and statistics."""

    state: NodeState = NodeState.IDLE
    execution_count: int = 0
    """All runs, including active ones."""
    running_count: int = 0
    success_count: int = 0
    failure_count: int = 0
    """Failed runs. Runs that were aborted or reached a limit count neither as success nor as failure."""
    total_duration: float = 0.0
    """Total seconds of all runs that have ended, including time spent waiting."""
    last_execution: datetime | None = None
    """When the newest run started."""
    is_complete: bool = True
    """Whether all runs were counted. If there are too many, only the newest are."""


def stats_of(executions: Sequence[Execution], *, is_complete: bool = True) -> AgentStats:
    """The statistics of these executions, which are given newest first."""
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
    """An abort or a limit is no failure: an agent whose last run ended so is idle."""
    if any(run.closed_at is None for run in runs):
        return NodeState.RUNNING
    last = max(runs, key=lambda run: run.closed_at or run.started_at, default=None)
    if last is None or last.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
        return NodeState.IDLE
    return NodeState.COMPLETED if last.status == RunStatus.COMPLETED else NodeState.FAILED
