"""The files of a tool call in a clone. They are stored before the result, which says what the agent has to know."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from loom.activities.clone_holds import TAKEN_OVER, CloneTakenOver
from loom.activities.ports import StoreUnavailable
from loom.activities.run_workspaces import MAYBE_LOST, HeldClone, RunWorkspaces, away
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, failed
from loom.domain.run.activity_payloads import ToolRequest

INTERRUPTED: Final = (
    f"Interrupted: {TAKEN_OVER} {MAYBE_LOST} It may have taken other effect in whole, in part or not at all. Check"
    " what is there before you go on."
)
_NOT_REPEATED: Final = "Check what is there before you go on, because an earlier attempt may have taken effect."


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFiles:
    """The files of one call. By default, nothing is known of them, and nothing is stored."""

    note: str = ""
    """What the agent has to know about the files. Empty if there is nothing."""
    clone: HeldClone | None = None
    """Set if the call may change a clone."""
    refusal: str = ""
    """Why the call can't run: the files aren't here, and can't be."""
    spend_note: Callable[[], Awaitable[None]] | None = None

    async def result_of(self, work: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """Return the result of a call that works on the files, once the change is stored."""
        if self.refusal:
            return failed(self.refusal, "unavailable")
        return self.noted(await (work() if self.clone is None else _stored(self.clone, work)))

    def noted(self, result: ToolResult) -> ToolResult:
        """Return the result with what the agent has to know about the files."""
        if not self.note or not result.is_final:
            return result
        return replace(result, content=f"{self.note}\n{result.content}")

    async def told(self, result: ToolResult) -> None:
        """Note that this result is stored, so that no other one has to tell the agent the same."""
        if self.spend_note is not None and self.note and self.note in result.content:
            await self.spend_note()


@asynccontextmanager
async def files_of(request: ToolRequest, scope: Scope, workspaces: RunWorkspaces) -> AsyncIterator[CallFiles]:
    """Have the call's clone here. If the call may change it, no other call does so in the body.

    A quick attempt uses the files that the model call has found here. Raises ApplicationError if the clone can't be
    here now.
    """
    if request.checkout is None or request.quick or scope is Scope.CONTEXT:
        yield CallFiles()
        return
    async with AsyncExitStack() as stack:
        clone: HeldClone | None = None
        try:
            if request.effect is Effect.READ:
                note = await workspaces.ensure_clone(request.origin, request.checkout)
            else:
                call = f"{request.tool} ({request.call_id})"
                clone = await stack.enter_async_context(workspaces.held(request.origin, request.checkout, call))
                note = clone.note
            spend_note = partial(workspaces.told, request.origin, request.checkout, note)
            files = CallFiles(note=note, clone=clone, spend_note=spend_note)
        except BadRequest as error:
            files = CallFiles(refusal=_refusal(error, request))
        except (StoreUnavailable, UnreachableError) as error:
            raise away(error) from None
        yield files


async def _stored(clone: HeldClone, work: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
    try:
        async with clone.changing():
            result = await work()
    except CloneTakenOver:
        return failed(INTERRUPTED, "lost")
    problem = await clone.store()
    if not problem:
        return result
    status = "warning" if result.status == "success" else result.status
    return replace(result, content=f"{result.content}\n{problem}", status=status)


def _refusal(error: BadRequest, request: ToolRequest) -> str:
    if request.begun and request.effect is Effect.IDEMPOTENT:  # otherwise, the ledger knows that it hasn't begun
        return f"Not tried again: {error.message}. {_NOT_REPEATED}"
    return f"Not run: {error.message}"
