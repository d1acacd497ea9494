"""Heartbeats beside the work, so that a dead worker is noticed and a cancellation arrives while a tool is busy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from temporalio import activity

INTERVAL: Final = 0.4
"""Seconds. A cancellation reaches an activity with the answer to its next heartbeat."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeat in the background while the body runs."""
    beat = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat


async def _beat() -> None:
    while True:
        await asyncio.sleep(INTERVAL)
        activity.heartbeat()
