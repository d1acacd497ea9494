"""Read run statuses, lists and results from the Temporal server, without a worker."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from temporalio.client import (
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)

from loom.activities.failures import result_in
from loom.domain.agents.stats import Execution
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, Usage, usage_view
from loom.domain.core.requests import ENDED, RunError, RunRequest, RunResult, RunStatus
from loom.domain.history.past_turns import Beginning
from loom.domain.machine.transitions import evolve, start
from loom.domain.run.events import RunPrepared
from loom.domain.run.state import ParkedOn, RunState
from loom.domain.run.status import status_view
from loom.domain.tree.lineage import is_child
from loom.workflows.validation import AGENT_RUN, CREW_RUN, read_input, read_state

UNKNOWN_USAGE: Final[JsonObject] = dict.fromkeys(usage_view(Usage()))
"""The usage that is reported for a run that isn't responding."""

WAITING_FOR: Final = (*ParkedOn, "approval", "input", "resume", "tenant")
"""The values of the search attribute `LoomWaitingOn` in runs that wait for somebody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """An entry in a list of runs."""

    run_id: str
    status: str
    agent: str
    model: str
    waiting_on: str
    started_at: datetime
    closed_at: datetime | None
    cost: float | None
    tenant: str


def failed_result(error: WorkflowFailureError) -> RunResult:
    """Return the result that the failure contains.

    If the server ended the run, the failure contains no result. The returned result then describes the server's error.
    """
    if (result := result_in(error.cause)) is not None:
        return result
    return RunResult(
        status=RunStatus.FAILED,
        output="",
        structured_output=None,
        completed_explicitly=False,
        turns=0,
        usage=UNKNOWN_USAGE,
        cost=None,
        quality_metrics=None,
        tool_calls=0,
        artifacts=(),
        error=RunError(type=type(error.cause).__name__, message=str(error.cause)),
    )


def ended_view(description: WorkflowExecutionDescription, beginning: Beginning, result: RunResult) -> JsonObject:
    """Return the status of a run that has ended, built from its result."""
    view = _view(
        description,
        beginning,
        usage=result.usage,
        cost=result.cost,
        tool_calls=result.tool_calls,
        turns=result.turns,
    )
    return {
        **(_without_replaced_limits(view) if result.retries else view),
        "status": result.status,
        "queued_messages": 0,
        "children": list(result.children),
        "error": asdict(result.error) if result.error else None,
    }


def _without_replaced_limits(view: JsonObject) -> JsonObject:
    """Return the status of a retried run without the limits that it has exceeded, because a retry replaced them."""
    budget = {
        name: {**bound, "limit": None} if (bound["limit"] or 0) < (bound.get("spent") or 0) else bound
        for name, bound in view["budget"].items()
    }
    return {**view, "budget": budget, "max_turns": budget["turns"]["limit"]}


def outside_view(description: WorkflowExecutionDescription, beginning: Beginning) -> JsonObject:
    """Return the status of a run that isn't responding, built from its input and its Visibility record."""
    if (resting := resting_state(description, beginning)) is not None:
        return status_view(resting)
    known = dict(description.search_attributes)
    waiting_on = _first(known, "LoomWaitingOn")
    return {
        **_view(description, beginning, usage=UNKNOWN_USAGE, cost=None, tool_calls=None, turns=None),
        "status": _first(known, "LoomStatus") or RunStatus.RUNNING,
        "waiting_on": "a worker" if waiting_on in ("", "none") else waiting_on,
        "stale": True,
    }


def _view(
    description: WorkflowExecutionDescription,
    beginning: Beginning,
    *,
    usage: JsonObject,
    cost: float | None,
    tool_calls: int | None,
    turns: int | None,
) -> JsonObject:
    """Return a response in the format of the `status` Query, as far as it can be built without the run.

    The response doesn't list pending calls or questions. Fields that only the run itself knows are null.
    """
    known = dict(description.search_attributes)
    seen = status_view(_begun(description, beginning))
    spent = {"tokens": usage.get("total_tokens"), "cost_usd": cost, "tool_calls": tool_calls, "turns": turns}
    return {
        **seen,
        "agent": _first(known, "LoomAgent") or seen["agent"],
        "model": _first(known, "LoomModel") or seen["model"],
        "turn": turns,
        "waiting_on": None,
        "parked": None,
        "pending_approvals": [],
        "question": None,
        "usage": usage,
        "cost": cost,
        "budget": {
            name: {**bound, **({"spent": spent[name]} if name in spent else {})}
            for name, bound in seen["budget"].items()
        },
        "context": {**seen["context"], "tokens": None, "compressions": None},
        "tool_calls": tool_calls,
        "queued_messages": None,
        "todos": [],
        "children": [],
        "choice": None,
        "chat": None,
        "error": None,
    }


def resting_state(description: WorkflowExecutionDescription, beginning: Beginning) -> RunState | None:
    """Return the state of a chat that waits on the server alone, without a worker. Return None for any other run."""
    if not beginning.goes_on or not beginning.untouched:
        return None
    state = _begun(description, beginning)
    return state if state.chat is not None and state.chat.is_waiting else None


def _begun(description: WorkflowExecutionDescription, beginning: Beginning) -> RunState:
    """Return the run's state at the start of its last execution. In the first execution, include its preparation.

    If the request can't be read, the result is the state of a run with an empty task.
    """
    request, carried = (*beginning.given, None, None)[:2]
    try:
        if beginning.goes_on:
            return read_state(carried)
        asked = read_input(description.workflow_type, request)
    except (BadRequest, ValueError):
        asked = RunRequest(task="")
    state = start(description.id, asked, description.start_time)
    return state if beginning.prepared is None else evolve(state, RunPrepared(prepared=beginning.prepared))


def summary_of(execution: WorkflowExecution) -> RunSummary:
    """Return the list entry for a run."""
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
        tenant=_first(known, "LoomTenant"),
    )


def execution_of(execution: WorkflowExecution) -> Execution:
    """Convert a run to an entry for agent statistics."""
    return Execution(
        status=summary_of(execution).status,
        started_at=execution.start_time,
        closed_at=execution.close_time,
        goes_on=execution.status is WorkflowExecutionStatus.CONTINUED_AS_NEW,
    )


def ended_untold(execution: WorkflowExecution) -> bool:
    """Return whether the run ended before it was prepared, so that only its result contains its final status."""
    completed = execution.status is WorkflowExecutionStatus.COMPLETED
    return completed and not _first(dict(execution.search_attributes), "LoomStatus")


def is_sub_agent(execution: WorkflowExecution) -> bool:
    """Return whether this run was started by another run."""
    root = _first(dict(execution.search_attributes), "LoomRootRun")
    return root != execution.id if root else is_child(execution.id, execution.parent_id or "")


def listing(
    *, status: str | None, session: str | None, below: str | None, tenant: str | None, waiting: str | None
) -> str:
    """Return the List Filter for runs with a given status, in a given session, of a given tenant, in the tree below a
    given run, or that wait for what `waiting` names.

    Raises BadRequest if a value is invalid.
    """
    # A run that has continued as new is listed once, as its last execution.
    filters = [f"WorkflowType IN ('{AGENT_RUN}', '{CREW_RUN}')", "ExecutionStatus != 'ContinuedAsNew'"]
    if status is not None:
        filters.append(_with_status(status))
    if session is not None:
        filters.append(f"LoomSession = {_quoted(session, 'session')}")
    if below is not None:
        filters.append(f"LoomRootRun = {_quoted(below, 'below')}")
    if tenant is not None:
        filters.append(f"LoomTenant = {_quoted(tenant, 'tenant')}")
    if waiting is not None:
        if waiting not in WAITING_FOR:
            raise BadRequest(f"waiting is {waiting!r}, but must be one of {', '.join(WAITING_FOR)}", field="waiting")
        filters.append(f"LoomWaitingOn = '{waiting}' AND ExecutionStatus = 'Running'")
    return " AND ".join(filters)


def runs_of(agent: str) -> str:
    """Return the List Filter for an agent's runs. Raises BadRequest if the name is invalid."""
    return f"WorkflowType = '{AGENT_RUN}' AND LoomAgent = {_quoted(agent, 'agent')}"


def _with_status(status: str) -> str:
    """Return the List Filter for a status.

    A run that the server itself ended counts as failed, regardless of the last status that the run reported. A run that
    isn't prepared yet hasn't reported a status and counts as running. A run that ended before it was prepared matches
    the filter for every final status, because only its result contains the status.
    """
    try:
        asked = RunStatus(status)
    except ValueError:
        raise BadRequest(f"unknown status {status!r}; known: {', '.join(RunStatus)}", field="status") from None
    if asked is RunStatus.FAILED:
        return "ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')"
    said = f"LoomStatus = '{asked}'"
    if asked is RunStatus.RUNNING or asked in ENDED:
        said = f"({said} OR LoomStatus IS NULL)"
    return f"{said} AND ExecutionStatus = '{'Completed' if asked in ENDED else 'Running'}'"


def _quoted(value: str, field: str) -> str:
    if "'" in value:
        raise BadRequest("a filter must not contain a quote", field=field)
    return f"'{value}'"


def _first(known: Mapping[str, Sequence[Any]], name: str) -> str:
    return str(next(iter(known.get(name, ())), ""))
