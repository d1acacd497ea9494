"""Let one call at a time change the clones of a tree of runs, over all workers.

Calls of one worker queue. Calls of other workers look again and again. A call holds the clones until it releases them,
or until its worker no longer renews that. The database doesn't have to be there all the time: a call goes on without
it, and then renews its hold, unless another worker has taken the clones over. That cancels the call.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

import structlog

from loom.activities.ports import CloneKey, ClonePatches, CloneRecord, StoreUnavailable

_log = structlog.get_logger("loom.workspace")

RENEWAL: Final = 2.0
"""Seconds between two renewals of a hold."""
POLL_INTERVAL: Final = 0.2
"""Seconds between two checks whether a call on another worker still changes files."""
HOLD_TIMEOUT: Final = 50 * 60.0
"""Seconds that a call waits for others. The run then makes another attempt. Activities in a clone have an hour for this
(`workflows.options.CLONE_WAIT`).
"""

TAKEN_OVER: Final = "Another worker has taken over the workspace, because this one did not respond."


class CloneTakenOver(StoreUnavailable):
    """Another worker may change the files now, because this one stood still, or did not reach the database."""


class Hold:
    """The right of a call to change files."""

    def __init__(self, patches: ClonePatches, key: CloneKey, holder: UUID, record: CloneRecord) -> None:
        self.patches = patches
        self.key = key
        self.holder = holder
        self.record = record
        """What the workers knew about the clones when the call got them."""
        self.is_lost = False
        """Whether another worker has taken over."""
        self._task: asyncio.Task[Any] | None = None
        """The task that is cancelled if another worker takes over."""

    @asynccontextmanager
    async def guarding(self) -> AsyncIterator[None]:
        """Cancel the body if another worker takes over, and raise CloneTakenOver."""
        if self.is_lost:
            raise CloneTakenOver(TAKEN_OVER)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this function is called in a coroutine
        cancelling, self._task = task.cancelling(), task
        try:
            yield
        except asyncio.CancelledError:
            if self.is_lost and task.uncancel() <= cancelling:
                raise CloneTakenOver(TAKEN_OVER) from None
            raise
        finally:
            self._task = None

    async def renew(self) -> None:
        """Keep holding the clones until another worker has taken over."""
        while not self.is_lost:
            await asyncio.sleep(RENEWAL)
            try:
                self.is_lost = not await self.patches.renew(self.key, self.holder)
            except StoreUnavailable as error:
                _log.warning("clone_not_renewed", run_id=self.key.run_id, error=str(error))
        _log.warning("clone_taken_over", run_id=self.key.run_id)
        if self._task is not None:
            self._task.cancel()


class CloneHolds:
    """The holds of this worker's calls."""

    def __init__(self, patches: ClonePatches) -> None:
        self._patches = patches
        self._turns: WeakValueDictionary[CloneKey, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def held(self, key: CloneKey) -> AsyncIterator[Hold]:
        """Hold the clones of a tree, as soon as no other call does. Raises StoreUnavailable."""
        holder = uuid4()
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(HOLD_TIMEOUT):
                    await stack.enter_async_context(self._turns.setdefault(key, asyncio.Lock()))
                    stack.push_async_callback(self._release, key, holder)
                    record = await self._taken(key, holder)
            except TimeoutError:
                raise StoreUnavailable(
                    "other calls of this run and its sub-agents have held the clone for too long"
                ) from None
            hold = Hold(self._patches, key, holder, record)
            stack.callback(asyncio.create_task(hold.renew()).cancel)
            yield hold

    async def _taken(self, key: CloneKey, holder: UUID) -> CloneRecord:
        while (record := await self._patches.hold(key, holder)) is None:  # noqa: ASYNC110 - on another worker
            await asyncio.sleep(POLL_INTERVAL)
        return record

    async def _release(self, key: CloneKey, holder: UUID) -> None:
        with suppress(StoreUnavailable):  # it ends by itself
            await self._patches.release(key, holder)
