"""Waiting on conditions, never on the clock."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 100.0
"""Seconds after which a condition counts as never met."""


async def eventually(look: Callable[[], Awaitable[T | None]], *, within: float = PATIENCE) -> T:
    """The first answer of `look` that is neither None nor False; fails after `within` seconds.

    The limit only finds what would never happen. Nothing else is decided by it, however busy the machine is.
    """
    deadline = monotonic() + within
    while (seen := await look()) is None or seen is False:
        if monotonic() > deadline:
            raise AssertionError(f"nothing seen within {within} s")
        await asyncio.sleep(0.02)
    return seen
