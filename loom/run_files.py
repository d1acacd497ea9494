"""List, read and write files in the workspaces of runs: `client.files`.

Only workers have the files, so each request is a short workflow on the run's task queue (`workflows/run_files.py`).
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import uuid4

from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError

from loom.activities.adapters.temporal.errors import answered, failure_message, no_run
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.adapters.temporal.task_faults import task_fault
from loom.activities.ports import PartStore, StoreUnavailable
from loom.activities.toolbox.workspace.text_bytes import readable
from loom.domain.core.errors import (
    AccessDeniedError,
    BadRequest,
    LoomError,
    NoSuchFileError,
    RefusedError,
    RunNotFoundError,
    UnreachableError,
)
from loom.domain.core.media import MOST_BYTES
from loom.domain.core.requests import AGENT_RUN, CREW_RUN, STARTED_BY
from loom.domain.core.run_files import (
    INLINE_LIMIT,
    MAYBE_WRITTEN,
    PREFIX,
    RUN_FILES,
    CallerLimits,
    CarriedContent,
    FileEntry,
    FileOperation,
    FilesAnswer,
    FilesRequest,
)
from loom.visibility import SUMMARY_LENGTH, tenant_in
from loom.workflows.options import FILES_LIMIT, TASK_TIMEOUT

LOOK_EVERY: Final = 2.0
"""Seconds between two checks of whether a worker is at work."""
SILENT_LOOKS: Final = 10
"""The number of checks in a row that find no worker at work, after which the request is withdrawn."""
BUSY_LOOKS: Final = 600
"""The same if a worker has accepted the request, but no worker has been free to carry it out."""
WITHDRAWAL: Final = 5.0
"""Seconds that a worker with the request has to stop. It learns of the withdrawal with a heartbeat."""
_NOBODY_WAITS: Final = "the caller no longer waits"
_LONGEST_ID: Final = 970
_ERRORS: Final[Mapping[str, type[LoomError]]] = {
    kind.__name__: kind for kind in (AccessDeniedError, BadRequest, NoSuchFileError, RefusedError, RunNotFoundError)
}
"""The errors that a worker refuses a request with. All others say that it couldn't be carried out."""

_Handle: TypeAlias = "WorkflowHandle[Any, FilesAnswer]"


@dataclass(frozen=True, slots=True)
class _Silence:
    """Why no worker is at work on a request, and how many looks in a row the caller waits for one."""

    why: str
    most_looks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileList:
    """The entries of a folder."""

    entries: tuple[FileEntry, ...]
    """Sorted by name."""
    left_out: int
    """How many more entries there are."""
    note: str
    """What you have to know about the run's files, for example that they were restored. Empty if there is nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileContent:
    """A file or, as a .tar.gz archive, a folder."""

    data: bytes
    is_archive: bool
    left_out: int
    """How many files of a folder aren't in the archive, because they couldn't be read, or the run's rules deny them."""
    note: str
    """The same as `FileList.note`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenFile:
    """A file that was written."""

    path: str
    """Where it is: the real path, relative to the workspace."""
    bytes: int
    is_new: bool
    note: str
    """The same as `FileList.note`, and why the file couldn't be stored with the run's change, if it couldn't."""


class RunFiles:
    """The files in the workspaces of runs: `client.files`. Paths are relative to the run's workspace.

    All methods raise NoSuchFileError if there is no such file or folder, AccessDeniedError if the run's rules deny the
    access, BadRequest if the path can't be used, RefusedError if the run has no files, RunNotFoundError if there is no
    such run, and UnreachableError if no worker takes the request within about 20 seconds, or all are busy for 20
    minutes. If you cancel a call, its request is withdrawn.
    """

    def __init__(self, temporal: Client, contents: PartStore | None, limits: CallerLimits | None = None) -> None:
        """`contents` stores the contents of files. Without it, a file may have at most 1,000,000 bytes."""
        self._temporal = temporal
        self._contents = contents
        self._limits = limits
        self._runs = TemporalRuns(temporal)

    def for_caller(self, limits: CallerLimits) -> "RunFiles":
        """Return the same for a caller of a service: within these limits, and only for folders where everybody may
        start runs, even if this process signs its requests.
        """
        return RunFiles(self._temporal, self._contents, limits)

    async def list(self, run_id: str, path: str = ".", *, by: str = "") -> FileList:
        """List a folder: up to 1,000 entries. Without `path`, this is the workspace itself."""
        answer = await self._asked(run_id, "list", path, by)
        return FileList(entries=answer.entries, left_out=answer.left_out, note=answer.note)

    async def read(self, run_id: str, path: str = ".", *, by: str = "") -> FileContent:
        """Return a file, or a folder as a .tar.gz archive. Links, `.git` and what the run's rules deny are left out."""
        answer = await self._asked(run_id, "read", path, by)
        return FileContent(
            data=await self._content(answer.content or CarriedContent()),
            is_archive=answer.is_archive,
            left_out=answer.left_out,
            note=answer.note,
        )

    async def write(self, run_id: str, path: str, content: bytes, *, by: str = "") -> WrittenFile:
        """Create or replace a file. The folders above it are created.

        In a clone, this waits until no call of the run changes files. The agent isn't told: send it a message.
        """
        answer = await self._asked(run_id, "write", path, by, content)
        return WrittenFile(path=answer.path, bytes=len(content), is_new=answer.is_new, note=answer.note)

    async def _asked(
        self, run_id: str, operation: FileOperation, path: str, by: str, content: bytes | None = None
    ) -> FilesAnswer:
        """Start the workflow, and return its answer."""
        run = await self._runs.described(run_id)
        if run.workflow_type not in (AGENT_RUN, CREW_RUN):
            raise no_run(run_id)
        workflow_id = f"{PREFIX}{run_id}"[:_LONGEST_ID] + f"-{uuid4().hex[:12]}"
        request = FilesRequest(
            run_id=run_id,
            operation=operation,
            path=readable(path or "."),
            tenant=tenant_in(run),
            content=None if content is None else await self._carried(content, workflow_id),
            by_reference=self._contents is not None,
            limits=self._limits,
        )
        request.refuse_unusable()
        with answered(run_id):
            starting = asyncio.ensure_future(
                self._temporal.start_workflow(
                    RUN_FILES,
                    request,
                    id=workflow_id,
                    task_queue=run.task_queue,
                    result_type=FilesAnswer,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    execution_timeout=FILES_LIMIT,
                    task_timeout=TASK_TIMEOUT,
                    memo={STARTED_BY: by} if by else None,
                    static_summary=f"{request.summary} · {run_id}"[:SUMMARY_LENGTH],
                    priority=Priority(fairness_key=request.tenant or None),
                )
            )
            try:
                handle = await asyncio.shield(starting)
            except asyncio.CancelledError:
                await self._withdraw_start(starting)
                raise
            return await self._answer(handle, is_write=operation == "write")

    async def _withdraw_start(self, starting: "asyncio.Future[_Handle]") -> None:
        """Withdraw a request that the server may be accepting right now."""
        with suppress(RPCError):  # it wasn't accepted
            handle = await starting
            await self._withdraw(handle, asyncio.create_task(handle.result()), _NOBODY_WAITS)

    async def _answer(self, handle: _Handle, *, is_write: bool) -> FilesAnswer:
        """Wait for the answer, as long as a worker is at work. If nobody waits any longer, the request is withdrawn."""
        waiting = asyncio.create_task(handle.result())
        why = _NOBODY_WAITS
        try:
            why = await self._silence(handle, waiting)
        finally:
            if why:
                await self._withdraw(handle, waiting, why)
        if why and (not waiting.done() or _is_withdrawn(waiting.exception())):
            raise UnreachableError(why)
        try:
            return waiting.result()
        except WorkflowFailureError as error:
            raise _refusal(error, is_write=is_write) from error

    async def _silence(self, handle: _Handle, waiting: "asyncio.Task[FilesAnswer]") -> str:
        """Wait until the request has ended. Return why no worker is at work on it, or an empty string if it has."""
        looks = 0
        while not (await asyncio.wait({waiting}, timeout=LOOK_EVERY))[0]:
            silence = await self._why_silent(await handle.describe())
            looks = 0 if silence is None else looks + 1
            if silence is not None and looks >= silence.most_looks:
                return silence.why
        return ""

    async def _withdraw(self, handle: _Handle, waiting: "asyncio.Task[FilesAnswer]", why: str) -> None:
        """See to it that a request isn't carried out later. A worker that has it stops before it writes. If no worker
        has it, the server ends it.
        """
        with suppress(RPCError):  # the request has ended meanwhile
            await handle.cancel()
            if _is_with_worker(await handle.describe()):
                await asyncio.wait({waiting}, timeout=WITHDRAWAL)
            if not waiting.done():
                await handle.terminate(why)
        await asyncio.wait({waiting}, timeout=WITHDRAWAL)
        if waiting.done():
            waiting.exception()  # asyncio warns of an exception that nobody has looked at
        else:
            waiting.cancel()

    async def _why_silent(self, described: WorkflowExecutionDescription) -> "_Silence | None":
        """Return why no worker is at work on a request, or None if one is, or if it has ended."""
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return None
        if (fault := await task_fault(self._temporal, described)) is not None:
            why = f"the workers can't handle the request; they may be of an earlier release of Loom: {fault.error}"
            return _Silence(why, SILENT_LOOKS)
        queue, pending = described.task_queue, described.raw_description.pending_activities
        if any(each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED for each in pending):
            return None
        for each in pending:
            if each.HasField("last_failure"):
                failure = await failure_message(self._temporal.data_converter, each.last_failure)
                return _Silence(failure, SILENT_LOOKS)
        if pending:
            return _Silence(f"the workers of the task queue {queue!r} are busy: try again later", BUSY_LOOKS)
        return _Silence(
            f"no worker of the task queue {queue!r} took the request; start one with `loom up`", SILENT_LOOKS
        )

    async def _carried(self, content: bytes, workflow_id: str) -> CarriedContent:
        """Return a content as a request carries it."""
        most = INLINE_LIMIT if self._contents is None else MOST_BYTES
        if len(content) > most:
            way_out = ": set LOOM_DATABASE_URL to write more" if self._contents is None else ""
            raise BadRequest(f"a file may have at most {most:,} bytes, not {len(content):,}{way_out}", field="content")
        if self._contents is None or not content:
            return CarriedContent(data=b64encode(content).decode())
        try:
            return CarriedContent(digest=await self._contents.save(workflow_id, content, None))
        except StoreUnavailable as error:
            raise UnreachableError(f"the content can't be stored: {error}") from error

    async def _content(self, carried: CarriedContent) -> bytes:
        """Return the content that an answer carries."""
        if not carried.digest:
            return b64decode(carried.data)
        if self._contents is None:
            raise UnreachableError("the worker has stored the content in a database: set LOOM_DATABASE_URL to that one")
        try:
            data = await self._contents.load(carried.digest)
        except StoreUnavailable as error:
            raise UnreachableError(f"the content can't be read: {error}") from error
        if data is None:
            raise UnreachableError("the worker stores contents in another database: set LOOM_DATABASE_URL to that one")
        return data


def _is_with_worker(described: WorkflowExecutionDescription) -> bool:
    """Whether a worker has the request, or is about to schedule the activity that carries it out."""
    task = described.raw_description.pending_workflow_task
    has_task = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
    return has_task or bool(described.raw_description.pending_activities)


def _is_withdrawn(error: BaseException | None) -> bool:
    return isinstance(error, WorkflowFailureError) and isinstance(error.cause, CancelledError | TerminatedError)


def _refusal(error: WorkflowFailureError, *, is_write: bool) -> LoomError:
    """Return the error with which a worker refused a request, or which says that it wasn't carried out."""
    cause = error.cause
    if not isinstance(cause, ApplicationError):
        ended = f"the request ended without an answer: {cause}"
        return UnreachableError(f"{ended}{MAYBE_WRITTEN if is_write else ''}")
    if (kind := _ERRORS.get(cause.type or "")) is None:
        return UnreachableError(f"the request failed: {cause.message}")
    facts = next((each for each in cause.details if isinstance(each, Mapping)), {})
    return kind(cause.message, **facts)
