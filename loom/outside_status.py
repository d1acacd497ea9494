"""Build the status of a run that doesn't answer from what the Temporal server knows about it."""

from dataclasses import asdict

from temporalio.client import WorkflowExecution, WorkflowExecutionDescription

from loom.activities.adapters.temporal.task_faults import TaskFault
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunRequest, RunResult, RunStatus
from loom.domain.core.tasks import Origin
from loom.domain.history.past_turns import Beginning
from loom.domain.machine.activity_requests import origin_of
from loom.domain.machine.transitions import evolve, start
from loom.domain.run.events import RunPrepared
from loom.domain.run.state import RunState
from loom.domain.run.status import status_view
from loom.visibility import REPAIR, UNKNOWN_USAGE, first_in
from loom.workflows.validation import read_input, read_state


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
        "workspace": result.workspace,
        "error": asdict(result.error) if result.error else None,
    }


def _without_replaced_limits(view: JsonObject) -> JsonObject:
    """Return the status of a retried run without the limits that it has exceeded, because a retry replaced them."""
    budget = {
        name: {**bound, "limit": None} if (bound["limit"] or 0) < (bound.get("spent") or 0) else bound
        for name, bound in view["budget"].items()
    }
    return {**view, "budget": budget, "max_turns": budget["turns"]["limit"]}


def outside_view(
    description: WorkflowExecutionDescription, beginning: Beginning, fault: TaskFault | None = None
) -> JsonObject:
    """Return the status of a run that isn't responding, built from its input and its Visibility record. `fault` is why
    its workflow task fails, if it does.
    """
    if (resting := resting_state(description, beginning)) is not None:
        return status_view(resting)
    known = dict(description.search_attributes)
    waiting_on = first_in(known, "LoomWaitingOn")
    return {
        **_view(description, beginning, usage=UNKNOWN_USAGE, cost=None, tool_calls=None, turns=None),
        "status": first_in(known, "LoomStatus") or RunStatus.RUNNING,
        "waiting_on": "a worker" if waiting_on in ("", "none") else waiting_on,
        "stale": True,
        **({} if fault is None else {"waiting_on": REPAIR, "fault": fault.view()}),
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
        "agent": first_in(known, "LoomAgent") or seen["agent"],
        "model": first_in(known, "LoomModel") or seen["model"],
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
    """Return the state of a chat that has done nothing since its execution began. Return None for any other run."""
    if not beginning.goes_on or not beginning.untouched:
        return None
    state = _begun(description, beginning)
    return state if state.chat is not None and state.chat.is_waiting else None


def request_of(execution: WorkflowExecution, beginning: Beginning) -> RunRequest:
    """Return the run's request. If it can't be read, the task is empty."""
    return _begun(execution, beginning).request


def origin_from_outside(execution: WorkflowExecution, beginning: Beginning) -> Origin:
    """Return the origin for events about a run that can't tell of itself."""
    return origin_of(_begun(execution, beginning))


def _begun(description: WorkflowExecution, beginning: Beginning) -> RunState:
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
