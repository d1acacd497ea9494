"""Wait for conditions, never for a fixed time."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 100.0
"""Seconds after which a condition counts as never met."""


async def eventually(look: Callable[[], Awaitable[T | None]], *, within: float = PATIENCE) -> T:
    """Return the first result of `look` that is neither None nor False. Fail after `within` seconds.

    The limit only finds what would never happen. Nothing else is decided by it, however busy the machine is.
    """
    deadline, pause = monotonic() + within, 0.02
    while (seen := await look()) is None or seen is False:
        if monotonic() > deadline:
            raise AssertionError(f"nothing seen within {within} s")
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, 0.25)  # a look at a run costs its server and worker a task
    return seen
