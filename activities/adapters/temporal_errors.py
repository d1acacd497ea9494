"""What Temporal's errors mean to whoever asked for a run: the one place where they become Loom's."""

from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from loom_domain.errors import BadRequest, LoomError, RefusedError, RunNotFoundError, UnreachableError


def no_server(address: str, error: Exception) -> UnreachableError:
    """Why there is no connection to the server."""
    return UnreachableError(
        f"no Temporal server answers at {address}: run `loom up`, or set TEMPORAL_ADDRESS"
        f" ({str(error).splitlines()[0]})"
    )


def unanswered(error: RPCError, run_id: str) -> LoomError:
    """Why the server did not do what was asked of it for this run."""
    if error.status is RPCStatusCode.NOT_FOUND and str(error).lower().startswith("namespace"):
        return UnreachableError(f"the Temporal server does not know the namespace: {error}; see TEMPORAL_NAMESPACE")
    if error.status is RPCStatusCode.NOT_FOUND:
        if "already completed" in str(error):
            return RefusedError(f"run {run_id!r} has ended")
        return RunNotFoundError(f"there is no run {run_id!r}; `loom list` shows those there are")
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return BadRequest(str(error), field="")
    return UnreachableError(f"the Temporal server does not answer: {error}")


def refused(error: WorkflowUpdateFailedError) -> LoomError:
    """Why the run did not take what was asked of it."""
    cause = error.cause
    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
    kind = cause.type if isinstance(cause, ApplicationError) else ""
    return BadRequest(message, field="") if kind == "BadRequest" else RefusedError(message)
