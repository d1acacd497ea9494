"""Keep a call going while its worker is alive, even if Temporal has given up on the attempt.

Temporal gives up on an attempt when its heartbeats stop. The worker may have died or been too busy, or Temporal itself
may have been unavailable. Only the lease in the ledger tells these cases apart:

    first attempt    claim ── renew ── renew ── renew ── finish
    Temporal                      given up
    next attempt                           waits ──────── takes the result

If the worker dies, the lease ends, and the next attempt acts as after any lost attempt. If the run is stopped while the
next attempt waits, the next attempt takes over the claim. The first one learns this at its next renewal, and ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

import structlog
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.ports import Claim, Ledger, StoreUnavailable

_log = structlog.get_logger("loom.leases")

T = TypeVar("T")

RENEWAL: Final = 0.5
"""Seconds between two renewals of a lease. A call that takes less time renews nothing."""
LOOK: Final = 0.2
"""Seconds between two checks of an earlier attempt's lease."""
ASK: Final = 1.0
"""Seconds between two checks that the run goes on, after Temporal has given up on an attempt."""
GRACE: Final = 5.0
"""Seconds that such an attempt has to finish when its worker shuts down."""


@dataclass(eq=False, kw_only=True, slots=True)
class Lease:
    """The lease of an attempt that runs on this worker."""

    claim: Claim
    task: asyncio.Task[Any]
    since: float
    is_recorded: bool
    """Whether the ledger has the claim: from the start, or since the first renewal."""
    is_settled: bool = False
    """Whether its result has been stored before the end of the attempt, or the ledger was unavailable then."""


class Leases(Generic[T]):
    """The leases of the attempts that run on this worker. One statement renews them together."""

    def __init__(self, ledger: Ledger[T]) -> None:
        self._ledger = ledger
        self._held: set[Lease] = set()
        self._renewing: asyncio.Task[None] | None = None

    @contextmanager
    def held(self, claim: Claim, *, is_recorded: bool = False) -> Iterator[Lease]:
        """Keep the attempt alive during the body. If a later attempt takes over, cancel the current task."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this function is called in a coroutine
        lease = Lease(claim=claim, task=task, since=_now(), is_recorded=is_recorded)
        self._held.add(lease)
        if self._renewing is None or self._renewing.done():
            # In a context of its own, because the task serves all calls, and not only this one.
            self._renewing = asyncio.create_task(self._renew(), context=Context())
        try:
            yield lease
        finally:
            self._held.discard(lease)

    async def earlier_ended(self, claim: Claim, *other_keys: str) -> None:
        """Wait while an earlier attempt at the call is alive. If the run stops the call in the meantime, take over the
        claim, and give the earlier attempt time to notice this and to end. Raises StoreUnavailable.
        """
        try:
            while await self._is_alive(claim.key, *other_keys):  # noqa: ASYNC110 - perhaps on another worker
                await asyncio.sleep(LOOK)
        except asyncio.CancelledError:
            if is_stopped():
                with suppress(StoreUnavailable):
                    await self._ledger.reserve(claim.key, claim.run_id, claim.attempt)
                    await asyncio.sleep(2 * RENEWAL)
            raise

    async def found(self, claim: Claim) -> T | None:
        """Claim a call that may be repeated, and return the result of an earlier attempt, if there is one. Raises
        StoreUnavailable.
        """
        held = await self._ledger.reserve(claim.key, claim.run_id, claim.attempt)
        return None if held is None or isinstance(held, int) else held

    async def claimed_anew(self, claim: Claim) -> T | None:
        """The same, after a result that doesn't count anymore. Raises StoreUnavailable."""
        await self._ledger.forget(claim.key)
        return await self.found(claim)

    async def recorded(
        self,
        claim: Claim,
        work: Callable[[], Awaitable[T]],
        *,
        is_final: Callable[[T], bool] = lambda _: True,
        is_recorded: bool = False,
    ) -> T:
        """Do work that may be repeated. If the ledger has its claim, from the start or since the first renewal, store
        its result for a later attempt, provided that the result is final. The work doesn't depend on the ledger.
        """
        with self.held(claim, is_recorded=is_recorded) as lease:
            try:
                result = await work()
            except BaseException:
                await self.given_back(lease)
                raise
            if not is_final(result):
                await self.given_back(lease)
            else:
                await self._keep(result, lease)
        return result

    async def _keep(self, result: T, lease: Lease) -> None:
        """Store the result if a later attempt may need it. If the worker was too busy to renew the lease, it was also
        too busy for its heartbeats, and Temporal has perhaps given up on the attempt.
        """
        if lease.is_settled:
            return
        claim = lease.claim
        with suppress(StoreUnavailable):
            if not lease.is_recorded and _now() - lease.since >= RENEWAL:
                lease.is_recorded = claim.key in await self._ledger.renew([claim])
            if lease.is_recorded:
                await self._ledger.finish(claim.key, claim.attempt, result)

    async def store(self, claim: Claim, result: T, *, replaces: str | None = None) -> bool:
        """Store a result before further work, so that a crash of the worker doesn't lose it. Return whether the ledger
        has it. `replaces` is the key of an earlier result, which is deleted because history contains it. Raises
        StoreUnavailable.
        """
        for lease in self._held:
            lease.is_settled |= lease.claim == claim
        return await self._ledger.store(claim, result, replaces=replaces)

    async def given_back(self, lease: Lease) -> None:
        """End the lease of an attempt without a result, so that the next attempt doesn't wait for the lease to end. A
        stopped run makes no further attempt.
        """
        if lease.is_recorded and not is_stopped():
            with suppress(StoreUnavailable):
                await self._ledger.release(lease.claim)

    async def is_wanted(self, task: asyncio.Task[Any] | None) -> bool | None:
        """Whether the run goes on and the task holds its claims. None if Temporal or the ledger is unavailable."""
        held = [lease for lease in self._held if lease.task is task]
        try:
            renewed = await self._ledger.renew([lease.claim for lease in held]) if held else ()
        except StoreUnavailable as error:
            _log.warning("leases_not_renewed", calls=len(held), error=str(error))
            return None if await is_run_open() is not False else False
        for lease in held:
            lease.is_recorded = True
        return await is_run_open() if len(renewed) == len(held) else False

    async def _is_alive(self, *keys: str) -> bool:
        # When a suspended machine resumes, its leases have ended, but its attempts go on.
        is_here = any(lease.claim.key in keys for lease in self._held)
        return is_here or await self._ledger.is_alive(*keys)

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(RENEWAL)
            if due := [lease for lease in self._held if _now() - lease.since >= RENEWAL]:
                await self._renew_all(due)

    async def _renew_all(self, leases: Sequence[Lease]) -> None:
        newest = {lease.claim.key: lease for lease in sorted(leases, key=lambda lease: lease.claim.attempt)}
        try:
            kept = await self._ledger.renew([lease.claim for lease in newest.values()])
        except StoreUnavailable as error:
            _log.warning("leases_not_renewed", calls=len(newest), error=str(error))
            return
        for lease in leases:
            lease.is_recorded = True
            is_stored = lease.claim.key in kept and newest[lease.claim.key] is lease
            if not is_stored and lease in self._held:
                _log.warning("call_taken_over", key=lease.claim.key, attempt=lease.claim.attempt)
                lease.task.cancel()


async def outlasting(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the activity's work. Cancel the work if the run stops it, but let it go on if Temporal has
    only given up on this attempt.
    """
    task, began_at = asyncio.create_task(work), _now()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if is_given_up() and not task.done():
            _log.warning("attempt_given_up", activity_id=activity.info().activity_id)
            await _while_wanted(task, began_at)
        task.cancel()
        return await task


def is_given_up() -> bool:
    """Whether Temporal has given up on this attempt although nobody has stopped the run."""
    told = activity.cancellation_details()
    return told is not None and (told.not_found or told.timed_out) and not told.cancel_requested


def is_stopped() -> bool:
    """Whether the run has stopped this attempt."""
    told = activity.cancellation_details()
    return told is not None and told.cancel_requested


async def is_run_open() -> bool | None:
    """Whether the activity's run goes on. None if Temporal doesn't answer."""
    info = activity.info()
    run = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    try:
        described = await run.describe(rpc_timeout=timedelta(seconds=ASK))
    except RPCError as error:
        return False if error.status == RPCStatusCode.NOT_FOUND else None
    return described.status is WorkflowExecutionStatus.RUNNING


async def _while_wanted(task: asyncio.Task[Any], began_at: float) -> None:
    """Wait until the task has ended, or until its result is useless: its time is up, or the run has ended."""
    until = began_at + (activity.info().start_to_close_timeout or timedelta.max).total_seconds()
    while not task.done() and _now() < until:
        if activity.is_worker_shutdown():
            await asyncio.wait({task}, timeout=GRACE)
            return
        await asyncio.wait({task}, timeout=ASK)
        if await is_run_open() is False:
            return


def _now() -> float:
    return asyncio.get_running_loop().time()
