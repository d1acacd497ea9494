"""Times that Loom promises, and what they are on this machine: `python -m bench.promises`.

Tests prove what happens, on a machine of any speed. How long it takes is measured here.
"""

import asyncio
import subprocess
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from uuid import uuid4

import psutil

from bench.report import section, spread, table
from bench.stage import servers
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.ports import StreamUnavailable
from loom.stack import state
from loom.stack.state import Recorded

REPEATS = 5


class Promise(NamedTuple):
    """What takes how long at most, and how long it took, in seconds."""

    what: str
    at_most: float
    took: list[float]

    def row(self) -> list[str]:
        """Return the row of the table."""
        is_kept = "yes" if max(self.took) <= self.at_most else "no"
        return [self.what, f"≤ {self.at_most:g} s", spread(self.took, "s", 2), is_kept]


async def promises(home: Path) -> str:
    """Measure the promises that need no worker, with the stack of this home. Return the section as Markdown."""
    first, later = await _frozen_redis(state.read(home).parts["redis"])
    found = [
        Promise("`import loom`, in a new process", 0.25, [_import() for _ in range(REPEATS)]),
        Promise("the first write to a Redis that doesn't answer, before the run continues", 1.5, first),
        Promise("each write in the second after that", 0.1, later),
    ]
    text = (
        "Times are the median, with the minimum and the maximum. A promise is kept if the maximum is within the target."
        " Aborts and recovery have targets in their own sections."
    )
    return section("Promised times", text, table(["what", "target", "time", "kept"], [each.row() for each in found]))


def _import() -> float:
    begun = perf_counter()
    subprocess.run([sys.executable, "-P", "-c", "import loom"], check=True)
    return perf_counter() - begun


async def _frozen_redis(redis: Recorded) -> tuple[list[float], list[float]]:
    first, later = [], []
    process = psutil.Process(redis.pid)
    for _ in range(REPEATS):
        async with aclosing(RedisConnection(redis.address or "")) as link:
            await link.call(lambda client: client.ping())
            process.suspend()
            try:
                first.append(await _write(link))
                later.append(await _write(link))
            finally:
                process.resume()
    return first, later


async def _write(link: RedisConnection) -> float:
    begun = perf_counter()
    with suppress(StreamUnavailable):
        await link.call(lambda client: client.set(uuid4().hex, "x"))
    return perf_counter() - begun


def main() -> None:
    """Run the command line."""
    with servers() as (folder, _):
        sys.stdout.write(asyncio.run(promises(folder / ".loom")) + "\n")


if __name__ == "__main__":
    main()
