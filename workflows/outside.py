"""A run as its server sees it from outside: what can be known of it without a worker, as values of Loom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError

from loom_domain.agent_stats import Execution
from loom_domain.errors import BadRequest
from loom_domain.messages import JsonObject
from loom_domain.requests import RunError, RunResult, RunStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """One line of a list of runs."""

    run_id: str
    status: str
    agent: str
    model: str
    waiting_on: str
    started_at: datetime
    closed_at: datetime | None
    cost: float | None


def failed_result(error: WorkflowFailureError) -> RunResult:
    """The result inside a failure; of a run that the server ended, one that says so."""
    if (result := result_in(error.cause)) is not None:
        return result
    return RunResult(
        status=RunStatus.FAILED,
        output="",
        structured_output=None,
        completed_explicitly=False,
        turns=0,
        usage={},
        cost=None,
        quality_metrics=None,
        tool_calls=0,
        artifacts=(),
        error=RunError(type=type(error.cause).__name__, message=str(error.cause)),
    )


def result_in(cause: BaseException | None) -> RunResult | None:
    """The result that a run fails with; None when it was the server that ended it."""
    if not isinstance(cause, ApplicationError) or not cause.details or not isinstance(cause.details[0], dict):
        return None
    given = dict(cause.details[0])
    wrong = given.get("error")
    return RunResult(
        **{
            **given,
            "status": RunStatus(given["status"]),
            "error": RunError(**wrong) if wrong else None,
            "artifacts": tuple(given["artifacts"]),
            "children": tuple(given.get("children", ())),
        }
    )


def ended_view(description: WorkflowExecutionDescription, result: RunResult) -> JsonObject:
    known = dict(description.search_attributes)
    return {
        "run_id": description.id,
        "status": result.status,
        "agent": _first(known, "LoomAgent"),
        "model": _first(known, "LoomModel"),
        "turn": result.turns,
        "waiting_on": None,
        "pending_approvals": [],
        "usage": result.usage,
        "cost": result.cost,
        "budget": {},
        "tool_calls": result.tool_calls,
        "queued_messages": 0,
        "children": list(result.children),
        "error": {"type": result.error.type, "message": result.error.message} if result.error else None,
    }


def outside_view(description: WorkflowExecutionDescription) -> JsonObject:
    known = dict(description.search_attributes)
    return {
        "run_id": description.id,
        "status": _first(known, "LoomStatus") or RunStatus.RUNNING,
        "agent": _first(known, "LoomAgent"),
        "model": _first(known, "LoomModel"),
        "turn": None,
        "waiting_on": _first(known, "LoomWaitingOn") or "a worker",
        "pending_approvals": [],
        "usage": {},
        "cost": None,
        "budget": {},
        "children": [],
        "stale": True,
    }


def summary_of(execution: Any, known: Mapping[str, Sequence[Any]]) -> RunSummary:
    ended = {
        WorkflowExecutionStatus.FAILED: "failed",
        WorkflowExecutionStatus.TERMINATED: "failed",
        WorkflowExecutionStatus.TIMED_OUT: "failed",
        WorkflowExecutionStatus.CANCELED: "aborted",
    }
    running = execution.status is WorkflowExecutionStatus.RUNNING
    return RunSummary(
        run_id=execution.id,
        status=ended.get(execution.status) or _first(known, "LoomStatus") or ("running" if running else "completed"),
        agent=_first(known, "LoomAgent"),
        model=_first(known, "LoomModel"),
        waiting_on=_first(known, "LoomWaitingOn") if running else "",
        started_at=execution.start_time,
        closed_at=execution.close_time,
        cost=next(iter(known.get("LoomCostUsd", ())), None),
    )


def execution_of(execution: Any) -> Execution:
    known = dict(execution.search_attributes)
    return Execution(
        status=summary_of(execution, known).status,
        started_at=execution.start_time,
        closed_at=execution.close_time,
        goes_on=execution.status is WorkflowExecutionStatus.CONTINUED_AS_NEW,
    )


def status_filter(status: str) -> str:
    """A run's status in the server's words; what the server ended by itself has failed, whatever it last said."""
    try:
        asked = RunStatus(status)
    except ValueError:
        raise BadRequest(f"unknown status {status!r}; known: {', '.join(RunStatus)}", field="status") from None
    if asked is RunStatus.FAILED:
        return "ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')"
    ended = asked in (RunStatus.COMPLETED, RunStatus.ABORTED, RunStatus.LIMIT_REACHED, RunStatus.BUDGET_EXHAUSTED)
    return f"LoomStatus = '{asked}' AND ExecutionStatus = '{'Completed' if ended else 'Running'}'"


def quotable(value: str, field: str = "session") -> str:
    if "'" in value:
        raise BadRequest("a filter must not contain a quote", field=field)
    return value


def is_sub_agent(run_id: str, known: Mapping[str, Sequence[Any]]) -> bool:
    return _first(known, "LoomRootRun") not in ("", run_id)


def _first(known: Mapping[str, Sequence[Any]], name: str) -> str:
    return str(next(iter(known.get(name, ())), ""))
