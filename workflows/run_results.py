"""Convert a failed run's result to a Temporal failure, and read the result from such a failure."""

from typing import NoReturn

from temporalio.exceptions import ApplicationError

from loom.domain.core.requests import RunError, RunResult, RunStatus


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
