"""Times that Loom promises, and what they are on this machine: `python -m bench.promises`.

Tests prove what happens, on a machine of any speed. How long it takes is measured here.
"""

import asyncio
import subprocess
import sys
from contextlib import aclosing, suppress
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import psutil

from bench.report import section, spread, table
from bench.stage import servers
from bench.targets import Section, Target
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.ports import StreamUnavailable
from loom.stack import state
from loom.stack.state import Recorded

REPEATS = 5


async def promises(home: Path) -> Section:
    """Measure the promises that need no worker, with the stack of this home."""
    first, later = await _frozen_redis(state.read(home).parts["redis"])
    found = [
        ("`import loom`, in a new process", 0.25, [_import() for _ in range(REPEATS)]),
        ("the first write to a Redis that doesn't answer, before the run continues", 1.5, first),
        ("each write in the second after that", 0.1, later),
    ]
    text = "Times are the median, with the minimum and the maximum. The maximum is compared with the target."
    rows = [[what, spread(took, "s", 2)] for what, _, took in found]
    targets = [Target(what=what, measured=max(took), at_most=at_most, unit=" s") for what, at_most, took in found]
    return Section(section("Promised times", text, table(["what", "time"], rows)), tuple(targets))


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
        sys.stdout.write(asyncio.run(promises(folder / ".loom")).text + "\n")


if __name__ == "__main__":
    main()
