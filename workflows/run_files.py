"""The `RunFiles` workflow, which lists, reads or writes files in a run's workspace for a person.

It isn't part of the run: a run that has ended has files, too, and reading them must not make its history longer.
"""

from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityConfig

from loom.activities.failures import failure_of
from loom.activities.file_access import FileAccess
from loom.domain.core.run_files import RUN_FILES, FilesAnswer, FilesRequest
from loom.domain.run.activity_payloads import FilesCall
from loom.workflows import options
from loom.workflows.payload_converter import adapter_of
from loom.workflows.signed_requests import signed_start

_MAYBE_WRITTEN: Final = ". The file may have been written: look at it before you write it again"


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
            message = f"{failure.message}{_MAYBE_WRITTEN if is_write and failure.kind == 'lost' else ''}"
            raise ApplicationError(message, failure.context, type=failure.type, non_retryable=True) from error


def _read(request: object) -> FilesRequest:
    try:
        return adapter_of(FilesRequest).validate_python(request, extra="forbid")
    except ValueError as error:
        raise ApplicationError(f"not a request for files: {error}", type="BadRequest", non_retryable=True) from None
