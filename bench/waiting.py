"""Measure what many runs cost that wait for an approval: memory, CPU time, and how fast they start and go on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Any, Final

import psutil
from temporalio.client import Client

from bench.report import table
from bench.stage import QUEUE, Stage

AT_ONCE: Final = 50
"""Number of requests to the server at the same time."""
IDLE: Final = 10.0
"""Seconds in which the CPU time of the waiting runs' worker is measured."""
PATIENCE: Final = 900.0


async def waiting_runs(stage: Stage, counts: Iterable[int] = (200, 1000)) -> str:
    """Return the figures. Each number of runs gets a worker of its own, with the model of `bench.floor`."""
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    rows = [await _row(stage, client, count) for count in counts]
    head = ["runs", "started and waiting", "worker's memory", "beside it", "idle CPU", "went on", "completed"]
    return (
        "## Waiting runs\n\nRuns start together and wait for an approval. *Worker's memory* is its resident size before"
        " and after the start, and\n*beside it* that of the processes that write and embed memory. *Idle CPU* is the"
        f" worker's share of one processor\nfor {IDLE:.0f} s while all runs wait. Then each run is approved.\n\n"
        + table(head, rows)
    )


async def _row(stage: Stage, client: Client, count: int) -> list[Any]:
    stage.workers["loom"].kill()
    stage.workers["loom"].wait()
    worker = psutil.Process(stage.start_worker("loom", "loom._worker").pid)
    await client.execute_workflow("AgentRun", _request(asks=False), id=f"bench-warm-{count}", task_queue=QUEUE)
    before = _megabytes([worker])
    ids = [f"bench-waiting-{count}-{number}" for number in range(count)]
    begun = perf_counter()
    await _all(lambda run_id: client.start_workflow("AgentRun", _request(), id=run_id, task_queue=QUEUE), ids)
    await _counted(client, "LoomStatus = 'waiting_for_approval'", count)
    started = perf_counter() - begun
    memory, beside = _megabytes([worker]), _megabytes(worker.children(recursive=True))
    used = stage.cpu(worker.pid)
    await asyncio.sleep(IDLE)
    idle = (stage.cpu(worker.pid) - used) / IDLE
    begun = perf_counter()
    await _all(lambda run_id: client.get_workflow_handle(run_id).signal("approve", {"call_id": "c0-0"}), ids)
    results = await _all(lambda run_id: client.get_workflow_handle(run_id).result(), ids)
    went_on = perf_counter() - begun
    return [
        count,
        f"{started:.0f} s ({count / started:.0f}/s)",
        f"{before} → {memory} MB",
        f"{beside} MB",
        f"{100 * idle:.1f} %",
        f"{went_on:.0f} s ({count / went_on:.0f}/s)",
        sum(result["status"] == "completed" for result in results),
    ]


def _request(*, asks: bool = True) -> dict[str, Any]:
    permissions = {"read_file": "ask"} if asks else {}
    return {"task": "turns=1 calls=1", "model": "immediate:any", "permissions": permissions}


def _megabytes(processes: Iterable[psutil.Process]) -> int:
    return sum(process.memory_info().rss for process in processes) >> 20


async def _all(act: Callable[[str], Awaitable[Any]], ids: Iterable[str]) -> list[Any]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(run_id: str) -> Any:
        async with slots:
            return await act(run_id)

    return await asyncio.gather(*map(one, ids))


async def _counted(client: Client, condition: str, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await client.count_workflows(f"TaskQueue = '{QUEUE}' AND {condition}")).count < count:
            await asyncio.sleep(0.2)
