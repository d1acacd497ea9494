"""Protect a tool call that has side effects: take a snapshot of the workspace, and record the effect.

    snapshot ─▶ reserve ─▶ execute ─▶ finish

A worker may crash at any point. The next attempt then checks the ledger. If the call has finished, the attempt returns
the stored result. If the call hasn't started, the attempt runs it. If the call has started but not finished, the
attempt runs it again only if repeating it is harmless. Otherwise, the attempt reports that the outcome is unknown.

Before it checks, the next attempt waits while an earlier one is alive (`activities.leases`). A call that only reads is
recorded if it takes so long that its lease is renewed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal

import structlog
from temporalio.exceptions import ApplicationError

from loom.activities.fence import Fence
from loom.activities.leases import Leases, is_run_open
from loom.activities.ports import Claim, EffectLedger, Snapshots, StoreUnavailable
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, failed
from loom.domain.machine.activity_requests import idempotency_key, key_without_arguments
from loom.domain.machine.tool_results import UNKNOWN_OUTCOME, stopped_outcome
from loom.domain.run.activity_payloads import ToolRequest
from loom.domain.run.retry_policy import STORE_AWAY

_log = structlog.get_logger("loom.tool")

Execute = Callable[[str], Awaitable[ToolResult]]
"""Executes the call under an idempotency key."""
Noted = Callable[[ToolResult], ToolResult]
"""Returns the result with what the agent has to know about the files."""
KEEP_TRIES: Final = (0.1, 0.5, 2.0)
"""Seconds between attempts to store a result. If the worker crashed before the result was stored, the outcome would be
unknown.
"""


def unchanged(result: ToolResult) -> ToolResult:
    """Return the result as it is."""
    return result


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
        self._leases = None if ledger is None else Leases(ledger)
        self._snapshots = snapshots
        self._when_no_snapshot = when_no_snapshot

    @property
    def has_ledger(self) -> bool:
        """Whether the outcome of an interrupted call can be looked up."""
        return self._ledger is not None

    def fence(self) -> Fence:
        """Return a fence for one attempt."""
        return Fence(self._leases.is_wanted if self._leases is not None else lambda _: is_run_open())

    async def earlier_ended(self, request: ToolRequest) -> None:
        """Wait while an earlier attempt at the call is alive. If the run stops the call in the meantime, end that
        attempt.

        Raises ApplicationError if the ledger is unavailable and the call must not run without it.
        """
        if self._leases is None:
            return
        try:
            await self._leases.earlier_ended(_claim(request), key_without_arguments(request))
        except StoreUnavailable as error:
            if request.effect is not Effect.READ:
                raise _away(str(error)) from None

    async def carried_out(
        self,
        request: ToolRequest,
        scope: Scope,
        execute: Execute,
        warn: Callable[[str], None],
        noted: Noted = unchanged,
    ) -> ToolResult:
        """Return the result of a call, from this attempt or an earlier one. `noted` adds what the agent has to know to
        the result of a call that isn't repeated.

        Raises ApplicationError if the ledger is unavailable.
        """
        if request.effect is Effect.READ:
            return await self._read(request, execute)
        if refused := await self._kept_as_it_was(request, scope, warn):
            return refused
        if not request.accounted:
            if _is_in_doubt(request):
                return noted(failed(UNKNOWN_OUTCOME, "lost"))
            return await execute(idempotency_key(request))
        if self._ledger is None or self._leases is None:
            raise _away("this worker has none: set LOOM_DATABASE_URL")
        return await self._accounted(self._ledger, self._leases, request, execute, noted)

    async def _read(self, request: ToolRequest, execute: Execute) -> ToolResult:
        claim = _claim(request)
        if not request.accounted or self._leases is None:
            return await execute(idempotency_key(request))
        try:
            if request.begun and (found := await self._leases.found(claim)) is not None:
                return found
        except StoreUnavailable:
            return await execute(idempotency_key(request))
        return await self._leases.recorded(claim, lambda: execute(idempotency_key(request)), is_recorded=request.begun)

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

    async def _accounted(
        self,
        ledger: EffectLedger,
        leases: Leases[ToolResult],
        request: ToolRequest,
        execute: Execute,
        noted: Noted,
    ) -> ToolResult:
        key, held, stood_still = await _reserved(ledger, request)
        if isinstance(held, ToolResult):
            return held
        if held is not None and held > request.attempt:
            return failed("another worker has taken this call over", "aborted")
        in_doubt = held is not None and request.effect is Effect.ONCE
        outcome = stopped_outcome(stood_still) if stood_still else UNKNOWN_OUTCOME
        claim = _claim(request, key)
        with leases.held(claim, is_recorded=True) as lease:
            try:
                result = noted(failed(outcome, "lost")) if in_doubt else await execute(_tool_key(request, key))
            except BaseException:
                await leases.given_back(lease)
                raise
            await _finished(ledger, claim, result)
        return result


def _claim(request: ToolRequest, key: str = "") -> Claim:
    return Claim(key=key or _record_key(request), run_id=request.origin.run_id, attempt=request.attempt)


def _record_key(request: ToolRequest) -> str:
    """Return the key of this attempt's record. After each attempt whose tool failed, the next one has another record.
    The tool's idempotency key stays the same.
    """
    return f"{idempotency_key(request)}{f'/f{request.failures}' if request.failures else ''}"


def _tool_key(request: ToolRequest, key: str) -> str:
    """Return the tool's idempotency key for an attempt with this record."""
    return idempotency_key(request) if request.failures else key


def _is_in_doubt(request: ToolRequest) -> bool:
    return request.begun and request.effect is Effect.ONCE


async def _reserved(ledger: EffectLedger, request: ToolRequest) -> tuple[str, ToolResult | int | None, float]:
    """Return the key of the call's effect, the ledger's answer to a claim under this key, and for how many seconds the
    worker that had claimed it before has stood still.
    """
    key, stood_still = _record_key(request), 0.0
    try:
        if request.begun:  # perhaps on a worker of an earlier release, which claimed it under that release's key
            key = await ledger.find(key, key_without_arguments(request)) or key
            stood_still = await ledger.stood_still(key)
        return key, await ledger.reserve(key, request.origin.run_id, request.attempt), stood_still
    except StoreUnavailable as error:
        raise _away(str(error)) from None


def _away(why: str) -> ApplicationError:
    return ApplicationError(f"the effect ledger is unavailable: {why}", type=STORE_AWAY, non_retryable=True)


async def _finished(ledger: EffectLedger, claim: Claim, result: ToolResult) -> None:
    """Store the result. The workflow history records it immediately afterward, so the result is lost only if the worker
    crashes in between.
    """
    for pause in (*KEEP_TRIES, None):
        try:
            await ledger.finish(claim.key, claim.attempt, result)
        except StoreUnavailable as error:
            if pause is None:
                _log.error("effect_not_finished", key=claim.key, error=str(error))
                return
            await asyncio.sleep(pause)
        else:
            return
