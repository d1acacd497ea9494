"""Translate Temporal errors into Loom errors for callers. Only this module translates them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowUpdateFailedError
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.postgres.payloads import MISSING, UNAVAILABLE
from loom.domain.core.errors import BadRequest, LoomError, RefusedError, RunNotFoundError, UnreachableError

NO_STORAGE: Final = "TMPRL1105"
"""The SDK's error code for a payload in a store that this process doesn't know."""

UNPROCESSED: Final = "UnprocessedUpdate"
"""The type of the failure with which the server rejects an update that a worker didn't respond to."""

UNREADABLE: Final = (RPCError, ApplicationError, LoomError, ValueError, TypeError, RuntimeError)
"""What reading a run's content may raise: the server has deleted it, a store has lost it, its key is missing, or
another release has written it. A list of runs leaves out what it can't read of one run, and shows the others.
"""

_QUOTED: Final = re.compile(r'(?:message|error): "((?:[^"\\]|\\.)+)"')
"""Matches the human-readable message in the SDK's error text."""

_AWAY: Final = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)

_REFUSED: Final = re.compile("Unauthenticated|PermissionDenied|Unauthorized")


@contextmanager
def answered(run_id: str) -> Iterator[None]:
    """Translate errors from the server or from the store for large payloads into Loom errors.

    Raises BadRequest if the run's id is blank, which the server would refuse in its own words.
    """
    if not run_id.strip():
        raise BadRequest("the run's id is blank: name a run; `loom list` shows all runs", field="run_id")
    try:
        yield
    except RPCError as error:
        raise unanswered(error, run_id) from error
    except ApplicationError as error:
        if error.type not in (UNAVAILABLE, MISSING):
            raise
        raise UnreachableError(error.message) from error
    except RuntimeError as error:
        if NO_STORAGE not in str(error):
            raise
        raise UnreachableError(
            f"a payload of run {run_id!r} is too large for history and is stored in Postgres: set LOOM_DATABASE_URL,"
            " which needs `loom-agents[postgres]`"
        ) from error


def no_server(address: str, error: Exception) -> UnreachableError:
    """Return the error for a failed connection to the server. It contains the reason unless the reason is obvious."""
    why = unconnected(error)
    where = f"{address} ({why})" if why else address
    return UnreachableError(f"no Temporal server answers at {where}: run `loom up`, or set TEMPORAL_ADDRESS")


def is_refusal(error: Exception) -> bool:
    """Whether the server has answered that this client may not connect. Waiting doesn't change that."""
    return _REFUSED.search(str(error)) is not None


def is_away(error: UnreachableError) -> bool:
    """Whether the server gave no answer. The same request may succeed once the server is back."""
    cause = error.__cause__
    if isinstance(cause, RPCError):
        return cause.status in _AWAY
    return isinstance(cause, RuntimeError) and not is_refusal(cause) and NO_STORAGE not in str(cause)


def unconnected(error: Exception) -> str:
    """Return the reason why a server can't be reached, on one line. Return an empty string if no server is listening on
    the address.
    """
    text = " ".join(str(error).split())
    if "ConnectionRefused" in text:
        return ""
    said = _QUOTED.search(text)
    return said[1] if said else text


def unanswered(error: RPCError, run_id: str) -> LoomError:
    """Return the error to raise if the server didn't complete a request for this run."""
    if error.status is RPCStatusCode.NOT_FOUND and str(error).lower().startswith("namespace"):
        return UnreachableError(f"the Temporal server does not know the namespace: {error}; see TEMPORAL_NAMESPACE")
    if error.status is RPCStatusCode.NOT_FOUND:
        if "already completed" in str(error):
            return RefusedError(f"run {run_id!r} has ended")
        return no_run(run_id)
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return BadRequest(str(error), field="")
    return UnreachableError(f"the Temporal server does not respond: {error}")


def no_run(run_id: str) -> RunNotFoundError:
    """Return the error for a run id that doesn't exist or belongs to a workflow of another type."""
    return RunNotFoundError(f"there is no run {run_id!r}; `loom list` shows all runs")


def is_lost(error: WorkflowUpdateFailedError) -> bool:
    """Whether the server, and not the run, rejected the update, since a worker took it and didn't respond to it. The
    update has had no effect.
    """
    return isinstance(error.cause, ApplicationError) and error.cause.type == UNPROCESSED


def is_cut_off(error: RPCError) -> bool:
    """Whether the execution ended before it took the update. Its run may have ended, or continued as new."""
    return error.status is RPCStatusCode.NOT_FOUND and "aborted by closing workflow" in str(error)


def refused(error: WorkflowUpdateFailedError) -> LoomError:
    """Return the error for a request that the run rejected."""
    cause = error.cause
    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
    kind = cause.type if isinstance(cause, ApplicationError) else ""
    return BadRequest(message, field="") if kind == "BadRequest" else RefusedError(message)


async def failure_message(converter: DataConverter, failure: Failure) -> str:
    """Return the message of the failure's cause, or of the failure itself. It may be encrypted."""
    cause = await own_message(converter, failure.cause) if failure.HasField("cause") else ""
    return cause or await own_message(converter, failure)


async def own_message(converter: DataConverter, failure: Failure) -> str:
    """Return the failure's message, which may be encrypted."""
    if not failure.HasField("encoded_attributes"):
        return failure.message
    (attributes,) = await converter.decode([failure.encoded_attributes])
    message = attributes.get("message") if isinstance(attributes, Mapping) else None
    return message if isinstance(message, str) else failure.message
