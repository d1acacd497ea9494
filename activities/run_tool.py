"""The `run_tool` activity: make one attempt at a tool call in six stages, and record its effect."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from loom.activities.call_files import CallFiles, files_of
from loom.activities.effects import Effects, unchanged
from loom.activities.leases import is_given_up, outlasting
from loom.activities.manifest import Manifests
from loom.activities.memory.ephemeral import EphemeralMemory
from loom.activities.part_storing import PartKeeper
from loom.activities.ports import (
    Definitions,
    EventStream,
    StreamRedactor,
    ToolContext,
    ToolSet,
    TranscriptStore,
)
from loom.activities.publish import StreamWriter, heartbeating, stream_writer
from loom.activities.run_workspaces import RunWorkspaces
from loom.activities.toolbox.interceptors import after_call
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.pipeline import execute, written_paths
from loom.activities.toolbox.tool_sets import RunTools
from loom.domain.agents.hooks import Registered
from loom.domain.core.errors import ManifestChangedError
from loom.domain.core.messages import JsonObject, ToolCall, arguments_digest
from loom.domain.core.repositories import IN_CLONE
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, artifact_id, describe, failed, tool_message
from loom.domain.machine.activity_requests import idempotency_key, key_without_arguments
from loom.domain.run.activity_payloads import ToolRequest
from loom.domain.run.retry_policy import TIMED_OUT
from loom.domain.run.stream_events import (
    asked_for_proof,
    has_made_a_tool,
    tool_called,
    tool_progressed,
    tool_registered,
    tool_returned,
    tool_segment,
)

if TYPE_CHECKING:
    from loom.activities.approval_proofs import ProofCheck
    from loom.activities.kept_calls import KeptCalls

_log = structlog.get_logger("loom.tool")

RESEND = ToolResult(content="", resend=True)
"""Requests the call's arguments, because the worker doesn't have them."""

QUICK_TIMEOUT: Final = 0.1
"""Seconds that a quick attempt may take. The run receives the model's answer after all of them have ended."""


class ToolRunner:
    """Runs tools for runs."""

    def __init__(
        self,
        *,
        tools: ToolSet,
        own: RunTools,
        transcripts: TranscriptStore,
        stream: EventStream,
        sanitizer: OutputSanitizer,
        effects: Effects,
        masked: Callable[[], StreamRedactor],
        registered: Callable[..., Sequence[Registered]] | None,
        manifests: Manifests,
        parts: PartKeeper,
        workspaces: RunWorkspaces | None = None,
        definitions: Definitions | None = None,
        proofs: "ProofCheck | None" = None,
    ) -> None:
        """`proofs` is None if this worker needs no proofs of approvals, and `workspaces` if no run works in a clone."""
        self._tools = tools
        self._proofs = proofs
        self._workspaces = workspaces
        self._parts = parts
        self._definitions = definitions
        self._manifests = manifests
        self._own = own
        self._transcripts = transcripts
        self._stream = stream
        self._hygiene = sanitizer
        self._effects = effects
        self._has_ledger = effects.has_ledger
        self._masked = masked
        self._ephemeral = EphemeralMemory()
        self._registered = registered
        self._kept: KeptCalls | None = None
        """The calls that wait for input on this worker. None if there has been none."""

    @activity.defn(name="run_tool")
    async def run_tool(self, request: ToolRequest) -> ToolResult:
        """Run the call. If the tool fails, return the failure as a result for the model instead of raising an
        exception.
        """
        with _log_context(request):
            async with heartbeating():
                with self._effects.fence() as fence:
                    if not (request.accounted and self._has_ledger):
                        return await fence.held_back(partial(self._attempted, request, fence.check))
                    if request.begun:
                        await self._effects.earlier_ended(request)
                    return await outlasting(fence.held_back(partial(self._attempted, request, fence.check)))

    @activity.defn(name=f"run_tool{IN_CLONE}")
    async def run_tool_in_clone(self, request: ToolRequest) -> ToolResult:
        """The same in a clone."""
        return await self.run_tool(request)

    def is_quick(self, tool: str) -> bool:
        """Whether the tool of this name is declared quick."""
        return getattr(self._tools.get(tool), "quick", False) is True

    async def read_quickly(self, request: ToolRequest) -> ToolResult | None:
        """Make a quick attempt at a call, within the activity that called the model. Return None if the attempt has no
        final result, for whatever reason. An activity then makes the next attempt.
        """
        with _log_context(request):
            try:
                result = await self._attempted(request, check=lambda: None)
            except Exception as error:  # noqa: BLE001 - see the docstring
                _log.info("quick_read_left_to_activity", reason=str(error))
                return None
        return result if result.is_final else None

    async def _attempted(self, request: ToolRequest, check: Callable[[], None]) -> ToolResult:
        run_id = request.origin.run_id
        if request.round and self._kept is not None:
            self._kept.release(key_without_arguments(request))
        segment = tool_segment(request.turn, request.call_id, request.attempt)
        async with stream_writer(self._stream, request.origin, request.turn, segment) as writer:
            writer.notices(request.notices)
            arguments = request.arguments if request.arguments is not None else await self._found(request)
            if arguments is None:
                return RESEND
            try:
                await self._manifests.check_only(request.tool, request.spec_digest, run_id, writer)
            except ManifestChangedError as error:
                return failed(f"Not run: {error.message}", "unavailable")
            if not getattr(self._tools.get(request.tool), "uses_state", True):
                return await self._run(request, arguments, writer, {}, check)
            with self._ephemeral.of(run_id, request.call_id) as state:
                return await self._run(request, arguments, writer, state, check)

    def _keep(self, request: ToolRequest, context: ToolContext) -> None:
        """Keep a call open until its run goes on with it, or ends."""
        if self._kept is None:
            from loom.activities.kept_calls import KeptCalls  # noqa: PLC0415 - off the path of a plain run

            self._kept = KeptCalls()
        abandon = getattr(self._tools.get(request.tool), "abandon", None)
        if abandon is not None:
            self._kept.keep(key_without_arguments(request), partial(abandon, context))

    async def _found(self, request: ToolRequest) -> JsonObject | None:
        """Return the call's arguments if this worker has arguments with a matching digest."""
        found = await self._transcripts.find_arguments(request.origin.run_id, request.call_id)
        return found if found is not None and arguments_digest(found) == request.arguments_digest else None

    async def _run(
        self,
        request: ToolRequest,
        arguments: JsonObject,
        writer: StreamWriter,
        state: MutableMapping[str, Any],
        check: Callable[[], None],
    ) -> ToolResult:
        call = ToolCall(id=request.call_id, name=request.tool, arguments=arguments)
        box = self._tools_for(request)
        if self._proofs is not None and (why := await self._proofs.refusal(request, call, box.get(call.name))):
            return self._unproven(request, call, why, writer)
        called = partial(self._called, request, call, box, writer=writer, state=state, check=check)
        if request.checkout is None or self._workspaces is None:
            return await called()
        async with files_of(request, _scope_of(call, box), self._workspaces) as files:
            result = await called(files)
            await files.told(result)
            return result

    async def _called(
        self,
        request: ToolRequest,
        call: ToolCall,
        box: ToolSet,
        files: CallFiles | None = None,
        *,
        writer: StreamWriter,
        state: MutableMapping[str, Any],
        check: Callable[[], None],
    ) -> ToolResult:
        """Make the call. `files` are those of a clone, if the run works in one."""
        run_id, agent = request.origin.run_id, request.origin.agent
        told = _Told(writer, request, self._masked)
        told.began(call, self._hygiene)
        context = replace(self._context(request, state, told.progress), check=check)
        registered = self._registered(agent) if self._registered else ()
        executed = partial(
            execute,
            call,
            box=box,
            sanitizer=self._hygiene,
            is_cancelled=_is_stopped,
            note=request.note,
            after=partial(after_call, call, run_id=run_id, agent=agent, registered=registered) if registered else None,
        )

        async def run(context: ToolContext) -> ToolResult:
            async def attributed() -> ToolResult:
                async with self._attributed(call, request, box):
                    return await executed(context=context)

            async with _in_time(quick=request.quick):
                result = await (attributed() if files is None else files.result_of(attributed))
                return await self._parts.kept(result, request.origin) if result.parts else result

        if request.effect is Effect.READ and not self._has_ledger:
            result = await run(context)
        else:
            result = await self._effects.carried_out(
                request,
                Scope.CONTEXT if files is not None and files.refusal else _scope_of(call, box),
                lambda key: run(replace(context, idempotency_key=key)),
                warn=told.show,
                noted=unchanged if files is None else files.noted,
            )
        if result.needs is not None:
            if result.needs.queue or request.server_task:
                self._keep(request, context)
            _log.info("tool_needs_input", requests=len(result.needs.requests), round=request.round + 1)
            return result
        told.ended(result)
        if has_made_a_tool(request.tool, result):
            shown = self._hygiene.clean_arguments(call.arguments)
            writer.emit(tool_registered(request, shown))
        self._log_end(result, state)
        await self._transcripts.save_result(run_id, tool_message(call, result))
        return result

    def _log_end(self, result: ToolResult, state: MutableMapping[str, Any]) -> None:
        stages = result.metadata["stage_breakdown"]
        _log.info("tool_finished", status=result.status, error_type=result.error_type, **stages)
        if state:
            _log.debug("ephemeral_state", state=self._ephemeral.dump_ephemeral_state())

    def _tools_for(self, request: ToolRequest) -> ToolSet:
        box = self._own.added_to(self._tools, [request.made]) if request.made else self._tools
        # A tool that an MCP server lists after the check of the call hasn't been checked.
        return box if self._proofs is None else dict(box)

    def _unproven(self, request: ToolRequest, call: ToolCall, why: str, writer: StreamWriter) -> ToolResult:
        _log.warning("approval_not_proven", why=why)
        arguments = self._hygiene.clean_arguments(call.arguments)
        writer.emit(asked_for_proof(request, call, why=why, arguments=arguments))
        return ToolResult(content="", unproven=why)

    def _attributed(self, call: ToolCall, request: ToolRequest, box: ToolSet) -> AbstractAsyncContextManager[None]:
        """Record the worker's own definitions that the call changes in the body."""
        definitions = None if request.effect is Effect.READ else self._definitions
        if definitions is None:
            return nullcontext()
        paths = written_paths(call, box=box, workspace=Path(request.workspace))
        folders = definitions.touched(paths)
        return definitions.attributed(folders, run_id=request.origin.run_id, call_id=request.call_id)

    def _context(
        self, request: ToolRequest, state: MutableMapping[str, Any], progress: Callable[[str], None]
    ) -> ToolContext:
        return ToolContext(
            workspace=Path(request.workspace),
            run_id=request.origin.run_id,
            call_id=request.call_id,
            idempotency_key=idempotency_key(request),
            attempt=request.attempt,
            timeout=request.timeout,
            session_id=request.origin.session_id,
            tenant=request.origin.tenant,
            user_id=request.origin.user_id,
            root_run_id=request.origin.root_run_id,
            execution=request.origin.execution,
            root_execution=request.origin.root_execution,
            state=state,
            artifact=artifact_id(request.turn, request.call_id),
            progress=progress,
            skill=request.skill,
            sampling=request.sampling,
            session=request.session,
            found=tuple(self._tools[name].spec for name in request.found if name in self._tools),
            round=request.round,
            answers=request.answers,
            earlier_answers=request.earlier_answers,
            server_state=request.server_state,
            server_task=request.server_task,
        )


def _scope_of(call: ToolCall, box: ToolSet) -> Scope:
    return box[call.name].spec.scope if call.name in box else Scope.MCP


@asynccontextmanager
async def _in_time(*, quick: bool) -> AsyncIterator[None]:
    """Limit the time of a quick attempt. Raises ApplicationError if it takes too long."""
    limit = asyncio.timeout(QUICK_TIMEOUT if quick else None)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise ApplicationError(
            f"the call took more than {QUICK_TIMEOUT:g} s", type=TIMED_OUT, category=ApplicationErrorCategory.BENIGN
        ) from None


@contextmanager
def _log_context(request: ToolRequest) -> Iterator[None]:
    """Add the ids of the call to all log entries in the body."""
    span = request.origin.span_id(tool_segment(request.turn, request.call_id, request.attempt))
    ids = {**request.origin.log_ids, "span_id": span, "turn": request.turn}
    with structlog.contextvars.bound_contextvars(**ids, call_id=request.call_id, tool=request.tool):
        yield


def _is_stopped() -> bool:
    return activity.is_cancelled() and not is_given_up()


class _Told:
    """Reports one call on the live stream, with secrets redacted."""

    def __init__(self, writer: StreamWriter, request: ToolRequest, masked: Callable[[], StreamRedactor]) -> None:
        self._writer = writer
        self._request = request
        self._make_masked = masked
        self._masked: StreamRedactor | None = None
        """Redacts the partial output. None if there has been no partial output."""

    def began(self, call: ToolCall, sanitizer: OutputSanitizer) -> None:
        """Report that the call has started."""
        arguments, summary = sanitizer.clean_arguments(call.arguments), sanitizer.clean(describe(call))
        self._writer.emit(tool_called(self._request, arguments=arguments, summary=summary))

    def progress(self, piece: str) -> None:
        """Report partial output. Text that may be the start of a secret is held back.

        A quick attempt reports none, because it ends soon or is repeated in an activity.
        """
        if self._request.quick:
            return
        if self._masked is None:
            self._masked = self._make_masked()
        self.show(self._masked.feed(piece))

    def show(self, text: str) -> None:
        """Report text immediately."""
        if text:
            self._writer.emit(tool_progressed(self._request, text))

    def ended(self, result: ToolResult) -> None:
        """Report the result, after any text that was held back."""
        if self._masked is not None:
            self.show(self._masked.flush())
        self._writer.emit(tool_returned(self._request, result))
