"""Follow a run twice in a fresh process, and print how many milliseconds pass until the first event each time."""

import asyncio
import sys
from time import perf_counter

from loom import LoomClient
from loom.watching import closing


async def main(run_id: str) -> None:
    """Print two numbers."""
    async with LoomClient.connected() as loom:
        for _ in range(2):
            begun = perf_counter()
            async with closing(loom.watch(run_id)) as events:
                await anext(events)
            print((perf_counter() - begun) * 1000)


asyncio.run(main(sys.argv[1]))
