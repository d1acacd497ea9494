"""Convert between Loom's errors and Temporal's failures, in both directions.

    activity                                   workflow
    LoomError ──to_application_error──▶ ApplicationError ──▶ ActivityError ──failure_of──▶ Failure
                                        HEARTBEAT timeout, shutdown ────────────────────▶   lost
                                        no worker, store away, no permit, undecodable ──▶   infrastructure (`has_run`)
                                        everything else ────────────────────────────────▶   provider

    a failed run's RunResult ──fail──▶ ApplicationError ──result_in──▶ RunResult

This module is safe to use in workflows: it imports only Temporal's exceptions and the domain.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final, NoReturn

from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ApplicationErrorCategory,
    CancelledError,
    ServerError,
    TerminatedError,
    TimeoutError,  # noqa: A004  # the name that Temporal uses
    TimeoutType,
)

from loom.domain.core.errors import CircuitBreakerOpenError, LoomError, NoPermitError
from loom.domain.core.requests import RunError, RunResult, RunStatus
from loom.domain.run.retry_policy import CLONE_AWAY, STORE_AWAY, TIMED_OUT, USED, Failure, FailureKind

_SHUT_DOWN: Final = ("CancelledError", "WorkerShutdown", "ActivityPause", "ActivityReset")
"""Failure types that indicate a worker shutdown, as opposed to a request to stop the run."""

_NOT_KEPT: Final = "StorageUnavailable"
"""Failure type if the activity ran but its result couldn't be stored. The failure itself has this type, not its cause.
"""

_NOT_HERE: Final = "NotFoundError"
"""Failure type if a worker doesn't have this activity registered."""

_UNDECODABLE: Final = "Failed decoding"
"""Prefix of the SDK's error message for undecodable activity input. The error has no type."""


def to_application_error(
    error: LoomError, redact: Callable[[str], str], *, cost_micros: int | None = None
) -> ApplicationError:
    """Convert the error to an application failure that the activity can raise. Redact secrets in its message. The
    workflow decides whether to retry. `cost_micros` is the price of what a failed model call used, if it's known.
    """
    context = {name: value for name, value in error.context.items() if value is not None}
    if error.used is not None:
        context[USED] = {**asdict(error.used), "cost_micros": cost_micros}
    details = (context,) if context else ()
    # Where Temporal retries, it retries only a call that waits its turn.
    turn = timedelta(seconds=context["retry_after"]) if isinstance(error, NoPermitError) else None
    return ApplicationError(
        redact(error.message),
        *details,
        type=type(error).__name__,
        non_retryable=turn is None,
        next_retry_delay=turn,
        category=_category_of(error),
    )


def _category_of(error: LoomError) -> ApplicationErrorCategory:
    # The SDK logs a warning with a stack trace for each failure, but not for a benign one: a call that was put off.
    is_put_off = isinstance(error, NoPermitError | CircuitBreakerOpenError)
    return ApplicationErrorCategory.BENIGN if is_put_off else ApplicationErrorCategory.UNSPECIFIED


def failure_of(error: BaseException) -> Failure:
    """Convert the exception that a workflow caught from a failed activity to the failure of the run."""
    cause = error.cause if isinstance(error, ActivityError) and error.cause is not None else error
    match cause:
        case TimeoutError():
            return _timed_out(cause)
        case ApplicationError():
            return _failed(cause)
        case CancelledError():
            return _failure("provider", "ExecutionAbortedError", cause.message or "cancelled")
        case ServerError() | TerminatedError():
            return _failure("lost", type(cause).__name__, cause.message)
        case LoomError():
            return _failure("provider", type(cause).__name__, cause.message, cause.context)
        case _:
            return _failure("provider", type(cause).__name__, str(cause))


def _timed_out(error: TimeoutError) -> Failure:
    match error.type:
        case TimeoutType.HEARTBEAT:
            return _failure("lost", "HeartbeatTimeout", "the worker gave no sign of life")
        case TimeoutType.SCHEDULE_TO_START:
            return _failure("infrastructure", "NoWorker", "no worker took the work in time", {"has_run": False})
        case _:
            return _failure("provider", TIMED_OUT, error.message or "the attempt used up its time")


def _failed(error: ApplicationError) -> Failure:
    kind = error.type or "ApplicationError"
    if kind in _SHUT_DOWN:
        return _failure("lost", kind, error.message or "the worker shut down")
    if kind == _NOT_KEPT:
        return _failure("infrastructure", kind, error.message, {"has_run": True})
    details = next((detail for detail in error.details if isinstance(detail, Mapping)), {})
    if kind == NoPermitError.__name__:
        return _failure("infrastructure", kind, error.message, {**details, "has_run": False})
    if kind in (_NOT_HERE, STORE_AWAY, CLONE_AWAY) or error.message.startswith(_UNDECODABLE):
        return _failure("infrastructure", kind, error.message, {"has_run": False})
    return _failure("provider", kind, error.message, details)


def _failure(kind: FailureKind, name: str, message: str, context: Mapping[str, Any] | None = None) -> Failure:
    return Failure(kind=kind, type=name, message=message, context=context or {})


def fail(result: RunResult) -> NoReturn:
    """Fail the workflow with its result."""
    error = result.error or RunError(type="LoomError", message="the run failed")
    raise ApplicationError(error.message, result, type=error.type, non_retryable=True)


def result_in(cause: BaseException | None) -> RunResult | None:
    """Return the result in a run's failure, or None if the server ended the run."""
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
