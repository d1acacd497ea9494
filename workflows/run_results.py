"""The result of a run as its workflow ends: in a failure of Temporal where the run has failed, and read from one."""

from typing import NoReturn

from temporalio.exceptions import ApplicationError

from loom.domain.core.requests import RunError, RunResult, RunStatus


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
