"""A run as its server sees it from outside: what can be known of it without a worker, as values of Loom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.client import (
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import ApplicationError

from loom_domain.agent_stats import Execution
from loom_domain.errors import BadRequest
from loom_domain.messages import JsonObject
from loom_domain.requests import RunError, RunResult, RunStatus
from workflows.border import AGENT_RUN, CREW_RUN


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
    """The status of a run that has ended, from its result."""
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
    """The status of a run that does not answer, from what lists of runs know of it."""
    known = dict(description.search_attributes)
    waiting_on = _first(known, "LoomWaitingOn")
    return {
        "run_id": description.id,
        "status": _first(known, "LoomStatus") or RunStatus.RUNNING,
        "agent": _first(known, "LoomAgent"),
        "model": _first(known, "LoomModel"),
        "turn": None,
        "waiting_on": "a worker" if waiting_on in ("", "none") else waiting_on,
        "pending_approvals": [],
        "usage": {},
        "cost": None,
        "budget": {},
        "children": [],
        "stale": True,
    }


def summary_of(execution: WorkflowExecution) -> RunSummary:
    """A run in a list of runs."""
    known: Mapping[str, Sequence[Any]] = dict(execution.search_attributes)
    ended: dict[WorkflowExecutionStatus | None, str] = {
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


def execution_of(execution: WorkflowExecution) -> Execution:
    """A run as one among those that an agent's figures are made of."""
    return Execution(
        status=summary_of(execution).status,
        started_at=execution.start_time,
        closed_at=execution.close_time,
        goes_on=execution.status is WorkflowExecutionStatus.CONTINUED_AS_NEW,
    )


def is_sub_agent(execution: WorkflowExecution) -> bool:
    """Whether another run has started this one."""
    return _first(dict(execution.search_attributes), "LoomRootRun") not in ("", execution.id)


def listing(*, status: str | None, session: str | None, below: str | None) -> str:
    """The server's query for runs, of a status, of a session, in the tree below a run; raises BadRequest."""
    filters = [f"WorkflowType IN ('{AGENT_RUN}', '{CREW_RUN}')"]
    if status is not None:
        filters.append(_with_status(status))
    if session is not None:
        filters.append(f"LoomSession = {_quoted(session, 'session')}")
    if below is not None:
        filters.append(f"LoomRootRun = {_quoted(below, 'below')}")
    return " AND ".join(filters)


def runs_of(agent: str) -> str:
    """The server's query for the runs of an agent; raises BadRequest."""
    return f"WorkflowType = '{AGENT_RUN}' AND LoomAgent = {_quoted(agent, 'agent')}"


def _with_status(status: str) -> str:
    """A run's status in the server's words; what the server ended by itself has failed, whatever it last said."""
    try:
        asked = RunStatus(status)
    except ValueError:
        raise BadRequest(f"unknown status {status!r}; known: {', '.join(RunStatus)}", field="status") from None
    if asked is RunStatus.FAILED:
        return "ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')"
    ended = asked in (RunStatus.COMPLETED, RunStatus.ABORTED, RunStatus.LIMIT_REACHED, RunStatus.BUDGET_EXHAUSTED)
    return f"LoomStatus = '{asked}' AND ExecutionStatus = '{'Completed' if ended else 'Running'}'"


def _quoted(value: str, field: str) -> str:
    if "'" in value:
        raise BadRequest("a filter must not contain a quote", field=field)
    return f"'{value}'"


def _first(known: Mapping[str, Sequence[Any]], name: str) -> str:
    return str(next(iter(known.get(name, ())), ""))
