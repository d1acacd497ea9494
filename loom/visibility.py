"""Read run statuses, lists and results from the Temporal server, without a worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from temporalio.client import (
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import TerminatedError

from loom.activities.adapters.temporal.runs import UNQUOTABLE
from loom.activities.adapters.temporal.task_faults import FAILING_RUNS, is_failing
from loom.activities.failures import result_in
from loom.domain.agents.stats import Execution
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, Usage, usage_view
from loom.domain.core.requests import AGENT_RUN, CREW_RUN, ENDED, ParkedOn, RunError, RunResult, RunStatus
from loom.domain.tree.lineage import is_child

UNKNOWN_USAGE: Final[JsonObject] = dict.fromkeys(usage_view(Usage()))
"""The usage that is reported for a run that isn't responding."""

REPAIR: Final = "repair"
"""What a run waits for whose workflow task fails (see `run_repair`)."""
REPAIRED: Final = "loom repair"
"""Why the server has terminated an execution whose run a repair continues."""
WAITING_FOR: Final = (*ParkedOn, "approval", "input", "resume", "tenant", REPAIR)
"""What runs wait for: the values of the search attribute `LoomWaitingOn`, and `repair`."""

SUMMARY_LENGTH: Final = 200
"""The number of characters of a run's task that lists of runs show."""
TASK: Final = "task"
"""The field in a run's memo with these characters. Unlike the run's summary, a memo survives continue-as-new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """An entry in a list of runs."""

    run_id: str
    """The run's id, which is also its Workflow ID."""
    status: str
    """A value of `RunStatus`."""
    agent: str
    """The name of the run's agent. Empty until a worker has prepared the run."""
    model: str
    """The model as `prefix:name`. Empty until a worker has prepared the run."""
    waiting_on: str
    """`approval`, `input`, `resume`, `provider`, `operator`, `tenant` or `repair`. Empty or `none` if it waits for
    nothing.
    """
    started_at: datetime
    """When the run started or last continued as new, in UTC. `loom status` shows when it started."""
    closed_at: datetime | None
    """When that execution ended, in UTC. None while it is in progress."""
    cost: float | None
    """US dollars, with sub-agents. None while the run is in progress, and if a price is unknown."""
    tenant: str
    """The tenant that the run works for. Empty if it works for none."""
    session: str = ""
    """The session that the run belongs to. Empty if it belongs to none, and until a worker has prepared the run."""


def was_repaired(error: WorkflowFailureError) -> bool:
    """Whether a repair has ended the execution. Another one continues its run."""
    return isinstance(error.cause, TerminatedError) and error.cause.message == REPAIRED


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
    session = first_in(known, "LoomSession")
    return RunSummary(
        run_id=execution.id,
        status=ended.get(execution.status) or first_in(known, "LoomStatus") or ("running" if running else "completed"),
        agent=first_in(known, "LoomAgent"),
        model=first_in(known, "LoomModel"),
        waiting_on=(REPAIR if is_failing(execution) else first_in(known, "LoomWaitingOn")) if running else "",
        started_at=execution.start_time,
        closed_at=execution.close_time,
        cost=next(iter(known.get("LoomCostUsd", ())), None),
        tenant=first_in(known, "LoomTenant"),
        session="" if session == execution.id else session,
    )


def tenant_in(description: WorkflowExecutionDescription) -> str:
    """Return a run's tenant. Until the run is prepared, only its fairness key names it."""
    known = first_in(dict(description.search_attributes), "LoomTenant")
    return known or description.raw_description.workflow_execution_info.priority.fairness_key


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
    return completed and not first_in(dict(execution.search_attributes), "LoomStatus")


def is_sub_agent(execution: WorkflowExecution) -> bool:
    """Return whether this run was started by another run."""
    root = first_in(dict(execution.search_attributes), "LoomRootRun")
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
        waits = f"LoomWaitingOn = '{waiting}' AND ExecutionStatus = 'Running'"
        filters.append(FAILING_RUNS if waiting == REPAIR else waits)
    return " AND ".join(filters)


def beginning_with(prefix: str) -> str:
    """Return the List Filter for runs whose ids begin like this. Raises BadRequest if the prefix is invalid."""
    everything = listing(status=None, session=None, below=None, tenant=None, waiting=None)
    return f"{everything} AND WorkflowId STARTS_WITH {_quoted(prefix, 'run_id')}"


def runs_of(agent: str) -> str:
    """Return the List Filter for an agent's runs. Raises BadRequest if the name is invalid."""
    return f"WorkflowType = '{AGENT_RUN}' AND LoomAgent = {_quoted(agent, 'agent')}"


def completed_runs_of(agent: str, model: str | None) -> str:
    """Return the List Filter for an agent's completed runs. Raises BadRequest if a name is invalid."""
    filters = [runs_of(agent), _with_status(RunStatus.COMPLETED)]
    return " AND ".join([*filters, *([] if model is None else [f"LoomModel = {_quoted(model, 'model')}"])])


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
    if UNQUOTABLE.intersection(value):
        raise BadRequest("a filter must not contain a quote, a backslash or a null character", field=field)
    return f"'{value}'"


async def task_summary(description: WorkflowExecutionDescription) -> str:
    """Return the beginning of the run's task, or of a sub-agent's description. Empty if the server has neither."""
    return await description.static_summary() or str((await description.memo()).get(TASK, ""))


def root_of(execution: WorkflowExecution) -> str:
    """Return the ID of the root of the run's tree."""
    return first_value(execution, "LoomRootRun") or execution.root_id or execution.id


def first_value(execution: WorkflowExecution, name: str) -> str:
    """Return a search attribute's value, or an empty string."""
    return first_in(dict(execution.search_attributes), name)


def first_in(known: Mapping[str, Sequence[Any]], name: str) -> str:
    return str(next(iter(known.get(name, ())), ""))
