"""Measure whether `loom list` becomes slower as there are more runs."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final

from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from bench.many import each, until_found
from bench.report import section, spread, table
from bench.stage import stage
from bench.targets import Section, Target
from loom.client import LoomClient

QUEUE: Final = "bench-nobody"
"""A task queue without a worker."""
_TOLD: Final = {
    "LoomStatus": "running",
    "LoomAgent": "default",
    "LoomModel": "openai:scripted",
    "LoomWaitingOn": "none",
}
"""What a run tells the server about itself. `loom list` shows it."""


async def run_list(counts: Sequence[int] = (100, 1000, 5000), *, repeats: int = 9) -> Section:
    """Return the time of `LoomClient.list` at each number of runs. It has a server of its own, without a worker."""
    times: dict[int, list[float]] = {}
    shown = 0
    with stage() as ready:
        for count in counts:
            async with LoomClient.connected(ready.settings()) as loom:
                await _fill(loom.temporal, max(times, default=0), count)
                await loom.list()  # warm-up
                times[count] = []
                for _ in range(repeats):
                    begun = perf_counter()
                    shown = len(await loom.list())
                    times[count].append((perf_counter() - begun) * 1000)
    first = median(times[counts[0]])
    rows = [[f"{count:,}", spread(took, "ms"), f"{median(took) / first:.2f}"] for count, took in times.items()]
    text = (
        f"`LoomClient.list()` returns the newest {shown} runs, which `loom list` then prints. The figures are"
        f" medians of {repeats} calls of a connected client. No worker serves these runs: each one is started with"
        " the Search Attributes of a run, and then terminated. The comparison hides what a server with another"
        " database takes, and what the command takes to start, which is shown below."
    )
    slower = median(times[counts[-1]]) / first
    target = Target(
        what=f"list of runs with {counts[-1]:,} on the server ÷ {counts[0]:,}", measured=slower, at_most=1.3
    )
    return Section(section("List of runs", text, table(["runs on the server", "time", "÷ first"], rows)), (target,))


async def _fill(client: Client, there: int, count: int) -> None:
    """Make runs until the server has as many of them."""

    async def ended(run_id: str) -> None:
        told: list[SearchAttributePair[Any]] = [
            SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
            for name, value in {**_TOLD, "LoomRootRun": run_id}.items()
        ]
        handle = await client.start_workflow(
            "AgentRun",
            {"task": "to be listed"},
            id=run_id,
            task_queue=QUEUE,
            search_attributes=TypedSearchAttributes(told),
        )
        await handle.terminate()

    await each(ended, [f"bench-listed-{number}" for number in range(there, count)])
    await until_found(client, "ExecutionStatus = 'Terminated'", count)
