"""Protect a tool call that has side effects: take a snapshot of the workspace, and record the effect.

    snapshot ─▶ reserve ─▶ execute ─▶ finish

A worker may crash at any point. The next attempt then checks the ledger. If the call has finished, the attempt returns
the stored result. If the call hasn't started, the attempt runs it. If the call has started but not finished, the
attempt runs it again only if repeating it is harmless. Otherwise, the attempt reports that the outcome is unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal

import structlog
from temporalio.exceptions import ApplicationError

from loom.activities.ports import EffectLedger, Snapshots, StoreUnavailable
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, failed
from loom.domain.machine.activity_requests import idempotency_key, key_without_arguments
from loom.domain.machine.tool_results import UNKNOWN_OUTCOME
from loom.domain.run.activity_payloads import ToolRequest
from loom.domain.run.retry_policy import STORE_AWAY

_log = structlog.get_logger("loom.tool")

Execute = Callable[[str], Awaitable[ToolResult]]
"""Executes the call under an idempotency key."""
KEEP_TRIES: Final = (0.1, 0.5, 2.0)
"""Seconds between attempts to store a result. If the worker crashed before the result was stored, the outcome would be
unknown.
"""


class Effects:
    """Executes calls, records every effect, and ensures that no effect is repeated."""

    def __init__(
        self,
        *,
        ledger: EffectLedger | None = None,
        snapshots: Snapshots | None = None,
        when_no_snapshot: Literal["warn", "refuse"] = "warn",
    ) -> None:
        self._ledger = ledger
        self._snapshots = snapshots
        self._when_no_snapshot = when_no_snapshot

    @property
    def has_ledger(self) -> bool:
        """Whether the outcome of an interrupted call can be looked up."""
        return self._ledger is not None

    async def carried_out(
        self, request: ToolRequest, scope: Scope, execute: Execute, warn: Callable[[str], None]
    ) -> ToolResult:
        """Return the result of a call that may have side effects, from this attempt or an earlier one.

        Raises ApplicationError if the ledger is unavailable.
        """
        if refused := await self._kept_as_it_was(request, scope, warn):
            return refused
        if not request.accounted:
            return failed(UNKNOWN_OUTCOME, "lost") if _is_in_doubt(request) else await execute(idempotency_key(request))
        if self._ledger is None:
            raise _away("this worker has none: set LOOM_DATABASE_URL")
        return await self._accounted(self._ledger, request, execute)

    async def _kept_as_it_was(
        self, request: ToolRequest, scope: Scope, warn: Callable[[str], None]
    ) -> ToolResult | None:
        if self._snapshots is None or scope is Scope.CONTEXT:
            return None
        try:
            await self._snapshots.take(Path(request.workspace), request.origin.run_id, request.turn, request.call_id)
        except (OSError, StoreUnavailable) as error:
            _log.warning("no_snapshot", workspace=request.workspace, error=str(error))
            if self._when_no_snapshot == "refuse":
                return failed(f"Not run: no snapshot of the workspace could be taken ({error}).", "unavailable")
            warn(f"no snapshot of the workspace was taken: {error}")
        return None

    async def _accounted(self, ledger: EffectLedger, request: ToolRequest, execute: Execute) -> ToolResult:
        key, claim = await _reserved(ledger, request)
        if isinstance(claim, ToolResult):
            return claim
        if claim is not None and claim > request.attempt:
            return failed("another worker has taken this call over", "aborted")
        in_doubt = claim is not None and request.effect is Effect.ONCE
        result = failed(UNKNOWN_OUTCOME, "lost") if in_doubt else await execute(key)
        await _finished(ledger, key, request.attempt, result)
        return result


def _is_in_doubt(request: ToolRequest) -> bool:
    return request.begun and request.effect is Effect.ONCE


async def _reserved(ledger: EffectLedger, request: ToolRequest) -> tuple[str, ToolResult | int | None]:
    """Return the key of the call's effect, and the ledger's answer to a claim under this key."""
    key = idempotency_key(request)
    try:
        if request.begun:  # perhaps on a worker of an earlier release, which claimed it under that release's key
            key = await ledger.find(key, key_without_arguments(request)) or key
        return key, await ledger.reserve(key, request.origin.run_id, request.attempt)
    except StoreUnavailable as error:
        raise _away(str(error)) from None


def _away(why: str) -> ApplicationError:
    return ApplicationError(f"the effect ledger is unavailable: {why}", type=STORE_AWAY, non_retryable=True)


async def _finished(ledger: EffectLedger, key: str, attempt: int, result: ToolResult) -> None:
    """Store the result. The workflow history records it immediately afterward, so the result is lost only if the worker
    crashes in between.
    """
    for pause in (*KEEP_TRIES, None):
        try:
            await ledger.finish(key, attempt, result)
        except StoreUnavailable as error:
            if pause is None:
                _log.error("effect_not_finished", key=key, error=str(error))
                return
            await asyncio.sleep(pause)
        else:
            return
