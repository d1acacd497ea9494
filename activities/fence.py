"""Hold back a tool whose worker was frozen, until it is known whether its call is still wanted.

    worker ──beat──beat──       (stands still)            beat──beat──
    tool   ──step──step──                                 asks ─▶ goes on, or is cancelled

While a worker stands still, the run may end, and another worker may take over the call. When the worker goes on, its
tools must not go on before it has learned this. An async function is held back before its next step. A function in a
thread is held back where it uses its `ToolContext`, and is cancelled like any other (`user_tools.call`) once the
worker has learned that nobody wants the call. Commands stand still with their worker (`adapters.sandbox.worker_beat`).
"""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent import futures
from contextvars import copy_context
from types import TracebackType, coroutine
from typing import Any, Final, Self, TypeVar

import structlog
from temporalio import activity

from loom.domain.core.errors import ExecutionAbortedError

_log = structlog.get_logger("loom.fence")

T = TypeVar("T")

BEAT: Final = 0.25
"""Seconds between two beats of the event loop."""
STANDSTILL: Final = 1.0
"""Seconds without a beat after which the call is in doubt. Temporal times out an attempt after 1.4 seconds without a
heartbeat at the earliest: `options.LEASED_HEARTBEAT` minus `publish.INTERVAL`.
"""
AGAIN: Final = 0.5
"""Seconds before asking again, if nobody has answered whether the call is wanted."""

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux, this clock goes on while the machine is suspended."""


class Fence:
    """Holds back one attempt at a call while it is in doubt whether the call is still wanted."""

    def __init__(self, is_wanted: Callable[[asyncio.Task[Any] | None], Awaitable[bool | None]]) -> None:
        """`is_wanted` returns whether the run still wants the work of this task, or None if nobody knows."""
        self._is_wanted = is_wanted
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._thread = threading.get_ident()
        self._task: asyncio.Task[Any] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last = _now()
        self.is_lost = False
        """Whether nobody wants the call any more."""

    def __enter__(self) -> Self:
        """Start to watch for standstills."""
        self._beat()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End with the attempt. A thread that waits for an answer learns that its call is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._last = math.inf
        if self._asking is not None:
            self.is_lost = True
            self._asking.cancel()

    @property
    def is_in_doubt(self) -> bool:
        """Whether the worker has stood still, and doesn't yet know whether the call is wanted."""
        return self._asking is not None or _now() - self._last > STANDSTILL

    async def held_back(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work in steps, from one `await` to the next. Cancel it if nobody wants it any more.

        Tasks that the work begins are not held back. They are cancelled with it, if it waits for them.
        """
        self._task = asyncio.current_task()
        await self._known()
        if self.is_lost:
            raise asyncio.CancelledError
        return await self._in_steps(work())

    def check(self) -> None:
        """Return if the call is still wanted. In a thread, wait until this is known.

        Raises ExecutionAbortedError.
        """
        if self.is_in_doubt and threading.get_ident() != self._thread:
            try:
                asyncio.run_coroutine_threadsafe(self._known(), self._loop).result()
            except futures.CancelledError:  # the attempt has ended meanwhile
                self.is_lost = True
        if self.is_lost:
            raise ExecutionAbortedError(
                "this call is over: while its worker was frozen, its run ended, or another worker took the call over. "
                "Return without any further effects"
            )

    @coroutine
    def _in_steps(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        step, given = work.send, None
        while True:
            try:
                waits_for = step(given)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                step, given = work.send, (yield waits_for)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - what the work awaits has failed, or it is cancelled
                step, given = work.throw, error
            if self.is_in_doubt:
                try:
                    yield from self._known().__await__()
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation, which belongs to the work
                    step, given = work.throw, error

    async def _known(self) -> None:
        if self.is_in_doubt:
            await asyncio.shield(self._ask())

    def _beat(self) -> None:
        if self.is_in_doubt:
            self._ask()
        self._last = _now()
        self._timer = self._loop.call_later(BEAT, self._beat)

    def _ask(self) -> asyncio.Task[None]:
        if self._asking is None:
            learning = self._learn(stood_still=_now() - self._last)
            self._asking = asyncio.create_task(learning, context=self._context.copy())
            self._last = _now()
        return self._asking

    async def _learn(self, stood_still: float) -> None:
        try:
            while (wanted := await self._answer()) is None:  # noqa: ASYNC110 - a server answers
                await asyncio.sleep(AGAIN)
            self.is_lost = not wanted
        finally:
            self._asking = None
        _log.warning("worker_stood_still", seconds=round(stood_still, 1), call_goes_on=wanted)
        if self.is_lost and self._task is not None:
            self._task.cancel()

    async def _answer(self) -> bool | None:
        """Return whether the call is wanted, or None if nobody knows. A worker that ends doesn't wait for an answer."""
        try:
            wanted = await self._is_wanted(self._task)
        except Exception as error:  # noqa: BLE001 - whatever it is, the call stays in doubt
            _log.warning("call_in_doubt", error=repr(error))
            wanted = None
        if wanted is None and activity.in_activity() and activity.is_worker_shutdown():
            return False
        return wanted


def _now() -> float:
    return time.clock_gettime(_CLOCK)
