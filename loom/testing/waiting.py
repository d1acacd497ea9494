"""Wait for conditions, never for a fixed time."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T | None]], *, within: float = 60.0) -> T:
    """Return the first result of `look` that is neither None nor False. Fail after `within` seconds."""
    deadline = monotonic() + within
    while (seen := await look()) is None or seen is False:
        if monotonic() > deadline:
            raise AssertionError(f"nothing seen within {within} s")
        await asyncio.sleep(0.02)
    return seen
