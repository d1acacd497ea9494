"""The `RunFiles` workflow, which lists, reads or writes files in a run's workspace for a person.

It isn't part of the run: a run that has ended has files, too, and reading them must not make its history longer.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityConfig

from loom.activities.failures import failure_of
from loom.activities.file_access import FileAccess
from loom.domain.core.run_files import MAYBE_WRITTEN, RUN_FILES, FilesAnswer, FilesRequest
from loom.domain.core.value_problems import problem_of_value
from loom.domain.run.activity_payloads import FilesCall
from loom.workflows import options
from loom.workflows.payload_converter import adapter_of
from loom.workflows.signed_requests import signed_start
from loom.workflows.validation import field_path


@workflow.defn(name=RUN_FILES)
class RunFiles:
    """One request for files of a run."""

    @workflow.run
    async def run(self, request: object = None, *_: object) -> FilesAnswer:
        """Let a worker do what the request asks for."""
        start = signed_start([request]) if workflow.info().headers else None
        call = FilesCall(request=_read(request), start=start)
        is_write = call.request.operation == "write"
        how = options.WRITE_FILE if is_write else options.READ_FILES
        config: ActivityConfig = {**how, "activity_id": "access", "summary": call.request.summary}
        try:
            return await workflow.execute_activity_method(FileAccess.access_files, call, **config)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise  # the caller has withdrawn the request
            failure = failure_of(error)
            is_known = isinstance(error.cause, ApplicationError) and failure.kind != "lost"
            message = f"{failure.message}{MAYBE_WRITTEN if is_write and not is_known else ''}"
            raise ApplicationError(message, failure.context, type=failure.type, non_retryable=True) from error


def _read(request: object) -> FilesRequest:
    try:
        return adapter_of(FilesRequest).validate_python(request, extra="forbid")
    except ValidationError as error:
        problems = [f"{field_path(each['loc'])} {_problem(each)}" for each in error.errors(include_url=False)]
        message = f"the request for files is wrong: {'; '.join(problems)}"
        raise ApplicationError(message, type="BadRequest", non_retryable=True) from None


def _problem(problem: Mapping[str, Any]) -> str:
    is_unknown = problem["type"] == "unexpected_keyword_argument"
    return "is not a field" if is_unknown else problem_of_value(problem)
