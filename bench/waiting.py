"""Measure what many runs cost that wait for an approval: memory, CPU time, and how fast they start and go on."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import psutil
from temporalio.client import Client

from bench.floor import QUEUE as FLOOR_QUEUE
from bench.many import each, until_found
from bench.report import section, table
from bench.stage import QUEUE, Stage
from bench.targets import Section, Target
from bench.turns import start_worker

IDLE: Final = 10.0
"""Seconds in which the CPU time of the waiting runs' worker is measured."""
SETTLED: Final = 15.0
"""Seconds after the last run began to wait. By then, the worker has finished the work that follows a step."""
ASLEEP: Final = 120.0
"""Seconds until the processes beside the worker must have ended, because there is nothing to write."""
TASK: Final = "turns=1 calls=1"
QUEUES: Final = {"loom": QUEUE, "floor": FLOOR_QUEUE}


@dataclass(frozen=True, kw_only=True)
class _Waited:
    """The figures of one number of runs."""

    runs: int
    started: float
    """Seconds until all runs wait."""
    before: float
    memory: float
    """The worker's resident memory in MB, before the start and while all runs wait."""
    beside: float
    asleep: float
    """The worker's resident memory in MB, once the processes beside it have ended."""
    idle: float
    went_on: float
    completed: int

    @property
    def per_run(self) -> float:
        """Return the worker's memory per waiting run in KB."""
        return 1024 * (self.memory - self.before) / self.runs


async def waiting_runs(stage: Stage, count: int = 1000) -> Section:
    """Return the figures of so many runs. Their worker is a new one, with the model of `bench.floor`."""
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    floor, loom = await _waited(stage, client, "floor", count), await _waited(stage, client, "loom", count)
    rows = [_row("Loom", loom), _row("floor", floor), _ratios(loom, floor)]
    head = [
        *("runs", "loop", "started and waiting", "worker's memory", "per run", "beside it", "asleep", "idle CPU"),
        *("went on", "completed"),
    ]
    text = (
        "Runs start together, call the model and wait for an approval. *Worker's memory* is its resident size"
        " before and after the start, and *per run* is the difference for each run. *Beside it* is the peak memory"
        " of the processes that write and embed Loom's memory. They end when there is nothing to write, and *asleep* is"
        " the memory of all processes after that. *Idle CPU* is the worker's share of one processor for"
        f" {IDLE:.0f} s while all runs wait. Then each run is approved. The floor waits for a signal"
        " (`FloorWaiting` in `bench/floor.py`). Like Loom, it tells the server that it waits, but it checks no"
        " permissions and sends no events. The comparison hides that its worker uses Temporal's sandbox, which is"
        " the SDK's default and costs time and memory for each run. Loom's worker doesn't use it. Each figure is a"
        " single measurement."
    )
    return Section(section("Waiting runs", text, table(head, rows)), _targets(loom, floor))


async def _waited(stage: Stage, client: Client, loop: str, count: int) -> _Waited:
    if loop in stage.workers:
        stage.stop_worker(loop)
    worker = psutil.Process(start_worker(stage, loop).pid)
    ids = [f"bench-waiting-{loop}-{count}-{number}" for number in range(count)]
    await _warm_up(stage, client, loop, f"bench-warm-{loop}-{count}")
    before = _megabytes([worker])
    begun = perf_counter()
    await each(lambda run_id: _start(stage, client, loop, run_id), ids)
    await _until_waiting(client, loop, count)
    started = perf_counter() - begun
    memory, beside = _megabytes([worker]), _megabytes(worker.children(recursive=True))
    await asyncio.sleep(SETTLED)
    used = stage.cpu(worker.pid)
    await asyncio.sleep(IDLE)
    idle = (stage.cpu(worker.pid) - used) / IDLE
    beside = max(beside, _megabytes(worker.children(recursive=True)))  # vectors are computed after the start
    asleep = await _asleep(worker)
    begun = perf_counter()
    await each(lambda run_id: _approve(client, run_id), ids)
    results = await each(lambda run_id: client.get_workflow_handle(run_id).result(), ids)
    return _Waited(
        runs=count,
        started=started,
        before=before,
        memory=memory,
        beside=beside,
        asleep=asleep,
        idle=idle,
        went_on=perf_counter() - begun,
        completed=sum(result == "finished" or result["status"] == "completed" for result in results),
    )


async def _asleep(worker: psutil.Process) -> float:
    """Wait until the processes beside the worker have ended. Return the memory of all that is left."""
    with suppress(TimeoutError):
        async with asyncio.timeout(ASLEEP):
            while worker.children():
                await asyncio.sleep(1)
    return _megabytes([worker, *worker.children(recursive=True)])


async def _warm_up(stage: Stage, client: Client, loop: str, run_id: str) -> None:
    await _start(stage, client, loop, run_id)
    await _until_waiting(client, loop, 1)
    await _approve(client, run_id)
    await client.get_workflow_handle(run_id).result()


async def _start(stage: Stage, client: Client, loop: str, run_id: str) -> None:
    if loop == "loom":
        request = {"task": TASK, "model": "immediate:any", "permissions": {"read_file": "ask"}}
        await client.start_workflow("AgentRun", request, id=run_id, task_queue=QUEUE)
    else:
        args = [TASK, stage.env["LOOM_WORKSPACE"]]
        await client.start_workflow("FloorWaiting", args=args, id=run_id, task_queue=QUEUES[loop])


async def _approve(client: Client, run_id: str) -> None:
    await client.get_workflow_handle(run_id).signal("approve", {"call_id": "c0-0"})


async def _until_waiting(client: Client, loop: str, count: int) -> None:
    waits = "LoomStatus = 'waiting_for_approval' AND ExecutionStatus = 'Running'"
    await until_found(client, f"TaskQueue = '{QUEUES[loop]}' AND {waits}", count)


def _megabytes(processes: Sequence[psutil.Process]) -> float:
    return float(sum(process.memory_info().rss for process in processes)) / 1024 / 1024


def _row(loop: str, found: _Waited) -> list[Any]:
    return [
        found.runs,
        loop,
        f"{found.started:.0f} s ({found.runs / found.started:.0f}/s)",
        f"{found.before:.0f} → {found.memory:.0f} MB",
        f"{found.per_run:.0f} KB",
        f"{found.beside:.0f} MB",
        f"{found.asleep:.0f} MB",
        f"{100 * found.idle:.1f} %",
        f"{found.went_on:.0f} s ({found.runs / found.went_on:.0f}/s)",
        found.completed,
    ]


def _ratios(loom: _Waited, floor: _Waited) -> list[Any]:
    started, went_on = loom.started / floor.started, loom.went_on / floor.went_on
    per_run = loom.per_run / floor.per_run
    return [loom.runs, "Loom ÷ floor", f"{started:.2f}", "", f"{per_run:.2f}", "", "", "", f"{went_on:.2f}", ""]


def _targets(loom: _Waited, floor: _Waited) -> tuple[Target, ...]:
    runs = f"{loom.runs:,} waiting runs"
    return (
        Target(what=f"{runs}: worker's memory", measured=loom.memory, at_most=150, unit=" MB"),
        Target(what=f"{runs}: memory of the processes beside it", measured=loom.beside, at_most=70, unit=" MB"),
        Target(what=f"{runs}: time until all wait ÷ floor", measured=loom.started / floor.started, at_most=1.5),
        Target(what=f"{runs}: idle CPU", measured=100 * loom.idle, at_most=3, unit=" %"),
        Target(what=f"{runs}: runs that completed", measured=loom.completed, at_least=loom.runs),
    )
