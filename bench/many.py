"""Start many runs, and wait until all of them have come as far as you need."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from temporalio.client import Client

AT_ONCE: Final = 50
"""Number of requests to the server at the same time."""
PATIENCE: Final = 900.0
"""Seconds until the server must have found all runs."""


async def each(act: Callable[[str], Awaitable[Any]], run_ids: Iterable[str]) -> list[Any]:
    """Do the same for each run, and return the results in order."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(run_id: str) -> Any:
        async with slots:
            return await act(run_id)

    return await asyncio.gather(*map(one, run_ids))


async def until_found(client: Client, query: str, count: int) -> None:
    """Wait until as many runs match a List Filter."""
    async with asyncio.timeout(PATIENCE):
        while (await client.count_workflows(query)).count < count:
            await asyncio.sleep(0.2)
