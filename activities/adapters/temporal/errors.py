"""What Temporal's errors mean to whoever asked for a run: the one place where they become Loom's."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.postgres.payloads import MISSING, UNAVAILABLE
from loom.domain.core.errors import BadRequest, LoomError, RefusedError, RunNotFoundError, UnreachableError

_NO_STORAGE: Final = "TMPRL1105"
"""The SDK's number for a payload that lies where this process was not told to look."""

_QUOTED: Final = re.compile(r'(?:message|error): "((?:[^"\\]|\\.)+)"')
"""Where the SDK's text for programmers says something to people."""


@contextmanager
def answered(run_id: str) -> Iterator[None]:
    """What the server, or the store of large payloads behind it, does not do for this run is said in Loom's words."""
    try:
        yield
    except RPCError as error:
        raise unanswered(error, run_id) from error
    except ApplicationError as error:
        if error.type not in (UNAVAILABLE, MISSING):
            raise
        raise UnreachableError(error.message) from error
    except RuntimeError as error:
        if _NO_STORAGE not in str(error):
            raise
        raise UnreachableError(
            f"a part of run {run_id!r} is too large for history and lies in Loom's Postgres: set LOOM_DATABASE_URL"
        ) from error


def no_server(address: str, error: Exception) -> UnreachableError:
    """Why there is no connection to the server, as far as it does not go without saying."""
    why = unconnected(error)
    where = f"{address} ({why})" if why else address
    return UnreachableError(f"no Temporal server answers at {where}: run `loom up`, or set TEMPORAL_ADDRESS")


def unconnected(error: Exception) -> str:
    """Why a server cannot be connected to, on one line; nothing where nobody listens, which goes without saying."""
    text = " ".join(str(error).split())
    if "ConnectionRefused" in text:
        return ""
    said = _QUOTED.search(text)
    return said[1] if said else text


def unanswered(error: RPCError, run_id: str) -> LoomError:
    """Why the server did not do what was asked of it for this run."""
    if error.status is RPCStatusCode.NOT_FOUND and str(error).lower().startswith("namespace"):
        return UnreachableError(f"the Temporal server does not know the namespace: {error}; see TEMPORAL_NAMESPACE")
    if error.status is RPCStatusCode.NOT_FOUND:
        if "already completed" in str(error):
            return RefusedError(f"run {run_id!r} has ended")
        return no_run(run_id)
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return BadRequest(str(error), field="")
    return UnreachableError(f"the Temporal server does not answer: {error}")


def no_run(run_id: str) -> RunNotFoundError:
    """There is nothing of that id, or it is a workflow that is no run."""
    return RunNotFoundError(f"there is no run {run_id!r}; `loom list` shows those there are")


def refused(error: WorkflowUpdateFailedError) -> LoomError:
    """Why the run did not take what was asked of it."""
    cause = error.cause
    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
    kind = cause.type if isinstance(cause, ApplicationError) else ""
    return BadRequest(message, field="") if kind == "BadRequest" else RefusedError(message)
