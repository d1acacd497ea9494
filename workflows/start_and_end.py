"""How a run begins and ends as a workflow: its first state, and failures in words of Temporal."""

from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunError, RunRequest, RunResult, RunStatus
from loom.domain.machine.transitions import evolve, start
from loom.domain.run.events import Event, RunRefused
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import RunState
from loom.domain.tree.lineage import is_child
from loom.workflows.validation import CREW_RUN, read_crew_request, read_lineage, read_request, read_state


def initial_state(request: object, carried: tuple[object, ...]) -> RunState:
    """The state of a run that begins, or that goes on from an earlier execution; a wrong request is a refused run."""
    info = workflow.info()
    if info.continued_run_id is not None and carried:
        return read_state(carried[0])
    try:
        # Only a run that starts another one tells it where it comes from; a second input from anybody else is nobody's.
        delegated = info.parent is not None and is_child(info.workflow_id, info.parent.workflow_id)
        lineage = read_lineage(carried[0]) if carried and delegated else None
        return start(info.workflow_id, read_input(info.workflow_type, request), workflow.now(), lineage)
    except BadRequest as error:
        refused = start(info.workflow_id, RunRequest(task=""), workflow.now())
        wrong = RunError(type="BadRequest", message=error.message, context=error.context)
        return evolve(refused, RunRefused(error=wrong))


def read_input(workflow_type: str, request: object) -> RunRequest:
    """The input of a workflow of this type; raises BadRequest."""
    return read_crew_request(request) if workflow_type == CREW_RUN else read_request(request)


def refused(failure: Failure) -> Event:
    """What a failure without remedy is for the run."""
    return RunRefused(error=RunError(type=failure.type, message=failure.message, context=failure.context))


def fail(result: RunResult) -> NoReturn:
    """End the workflow as failed, with its result."""
    error = result.error or RunError(type="LoomError", message="the run failed")
    raise ApplicationError(error.message, result, type=error.type, non_retryable=True)


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
