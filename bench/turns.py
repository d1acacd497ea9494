"""Compare the time and processor time per turn with those of a minimal hand-written loop on the same server."""

from asyncio import gather
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from temporalio.client import Client

from bench.floor import QUEUE as FLOOR_QUEUE
from bench.floor import FloorLoop
from bench.minimal import QUEUE, MinimalLoop
from bench.report import ratio, spread, table
from bench.stage import QUEUE as LOOM_QUEUE
from bench.stage import Stage

LOOPS = ("loom", "minimal lean", "minimal whole")
Loop = Callable[[str], Awaitable[str]]
"""Runs a task to its end, and returns the run's ID."""
Figures = dict[str, list[tuple[float, float, float]]]
"""The milliseconds per turn of each loop's runs: elapsed time, the worker's CPU time and the server's CPU time."""
SHAPES = ((20, 1), (100, 1), (10, 8))
"""The runs that are compared with the floor: the number of turns, and of tool calls in each turn."""


async def turn_cost(stage: Stage, *, pairs: int, turns: int) -> str:
    """Return the medians of interleaved runs with `turns` turns. Each turn has a tool result of 2 KB."""
    stage.start_worker("minimal", "bench.minimal", stage.model_url)
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    for loop in LOOPS:
        await _one(stage, client, loop, 10, "warm")
    figures: Figures = {loop: [] for loop in LOOPS}
    for number in range(pairs):
        for loop in LOOPS if number % 2 else reversed(LOOPS):
            figures[loop].append(await _one(stage, client, loop, turns, str(number)))
    rows: list[list[Any]] = []
    for loop in LOOPS:
        wall, worker, server = zip(*figures[loop], strict=True)
        times = ratio(next(zip(*figures["loom"], strict=True)), wall)
        rows.append([loop, spread(wall, "ms"), spread(worker, "ms"), spread(server, "ms"), times])
    head = ["loop", "time per turn", "worker CPU", "server CPU", "Loom's time ÷ this loop's time (median of pairs)"]
    return (
        f"## Time per turn\n\nEach loop ran {turns} turns in each of {pairs} interleaved rounds. All loops used the"
        " same model server and the same SDK.\n*lean* keeps the conversation only in the worker's memory, where it"
        " can't be recovered after a crash.\n*whole* sends the whole conversation in each turn.\n\n" + table(head, rows)
    )


async def floor_cost(stage: Stage, *, rounds: int = 5) -> str:
    """Return how Loom compares with a loop that does nothing but last, both with a model in the worker's process."""
    stage.start_worker("floor", "bench.floor")
    compared = loops(stage, await Client.connect(stage.env["TEMPORAL_ADDRESS"]))
    rows: list[list[Any]] = []
    for turns, calls in SHAPES:
        figures, beside = await turn_figures(stage, compared, turns, calls, rounds)
        (wall, worker, _), (floor_wall, floor_worker, _) = (zip(*figures[loop], strict=True) for loop in compared)
        shown = [spread(wall, "ms"), spread(floor_wall, "ms"), ratio(wall, floor_wall)]
        shown += [spread(worker, "ms"), spread(floor_worker, "ms"), ratio(worker, floor_worker)]
        rows.append([turns, calls, *shown, f"{beside:.1f} ms"])
    head = ["turns", "calls per turn", "Loom", "floor", "ratio", "Loom's worker CPU", "floor's", "ratio", "beside it"]
    return (
        "## Time per turn without a provider\n\nThe model and the tool answer at once in the worker's process, without"
        " HTTP and without an SDK. Their cost\nhides what Loom itself costs in the comparison above. The *floor* is a"
        " hand-written loop without any features\n(`bench/floor.py`). The figures are medians of"
        f" {rounds} interleaved rounds, and the ratios are medians of pairs.\n*Beside it* is the CPU time per turn of"
        " the processes that write and embed Loom's memory.\n\n" + table(head, rows)
    )


async def throughput(stage: Stage, *, rounds: int = 3, turns: int = 5) -> str:
    """Return how many turns per second many runs make together, with the worker of Loom and with that of the floor.
    Needs the workers of `floor_cost`.
    """
    compared = loops(stage, await Client.connect(stage.env["TEMPORAL_ADDRESS"]))
    rows: list[list[Any]] = []
    for runs in (1, 20, 100):
        rates = await turn_rates(compared, runs, turns, rounds)
        rows.append([runs, *(spread(rates[loop], "/s") for loop in rates), ratio(rates["loom"], rates["floor"])])
    head = ["runs at once", "turns of Loom", "turns of the floor", "Loom ÷ floor"]
    return (
        f"## Throughput\n\nRuns of {turns} turns with one tool call each start at the same time. There is one worker of"
        f" each kind, with the same\nmodel as above. The figures are medians of {rounds} interleaved rounds.\n\n"
        + table(head, rows)
    )


def loops(stage: Stage, client: Client) -> dict[str, Loop]:
    """Return Loom's loop and the floor, both with a model that answers at once."""

    async def loom(task: str) -> str:
        request = {"task": task, "max_turns": 10_000, "model": "immediate:any"}
        await client.execute_workflow("AgentRun", request, id=run_id("loom", task), task_queue=LOOM_QUEUE)
        return run_id("loom", task)

    async def floor(task: str) -> str:
        args = [task, stage.env["LOOM_WORKSPACE"]]
        await client.execute_workflow(FloorLoop.run, args=args, id=run_id("floor", task), task_queue=FLOOR_QUEUE)
        return run_id("floor", task)

    return {"loom": loom, "floor": floor}


def run_id(loop: str, task: str) -> str:
    """Return the ID of this loop's run of the task."""
    return f"bench-immediate-{loop} {task}".replace(" ", "-")


async def turn_figures(
    stage: Stage, compared: dict[str, Loop], turns: int, calls: int, rounds: int
) -> tuple[Figures, float]:
    """Return the figures of each loop in interleaved rounds, after a round that warms up the workers. The second value
    is the CPU time per turn of the processes beside Loom's worker.
    """
    figures: Figures = {loop: [] for loop in compared}
    beside = stage.cpu_beside(stage.workers["loom"].pid)
    for number in range(-1, rounds):
        for loop in compared if number % 2 else reversed(compared):
            run = compared[loop](f"turns={turns} calls={calls} round={number}")
            figures[loop].append(await _measured(stage, stage.workers[loop].pid, run, turns))
    beside = (stage.cpu_beside(stage.workers["loom"].pid) - beside) * 1000 / (turns * (rounds + 1))
    return {loop: measured[1:] for loop, measured in figures.items()}, beside


async def turn_rates(compared: dict[str, Loop], runs: int, turns: int, rounds: int) -> dict[str, list[float]]:
    """Return the turns per second that runs of each loop make together in interleaved rounds."""
    rates: dict[str, list[float]] = {loop: [] for loop in compared}
    for number in range(rounds):
        for loop in compared if number % 2 else reversed(compared):
            task = f"turns={turns} calls=1 of {runs} round={number}"
            begun = perf_counter()
            await gather(*(compared[loop](f"{task} run={run}") for run in range(runs)))
            rates[loop].append(runs * turns / (perf_counter() - begun))
    return rates


async def _one(stage: Stage, client: Client, loop: str, turns: int, label: str) -> tuple[float, float, float]:
    """Return milliseconds per turn: elapsed time, the worker's CPU time and the server's CPU time."""
    run_id = f"bench-{loop.replace(' ', '-')}-{turns}-{label}"
    task = f"turns={turns}"
    if loop == "loom":
        request = {"task": task, "max_turns": 1000}
        started = client.execute_workflow("AgentRun", request, id=run_id, task_queue=LOOM_QUEUE)
    else:
        args: list[Any] = [task, stage.env["LOOM_WORKSPACE"], loop.endswith("whole")]
        started = client.execute_workflow(MinimalLoop.run, args=args, id=run_id, task_queue=QUEUE)
    return await _measured(stage, stage.workers["loom" if loop == "loom" else "minimal"].pid, started, turns)


async def _measured(stage: Stage, pid: int, run: Awaitable[Any], turns: int) -> tuple[float, float, float]:
    before = (perf_counter(), stage.cpu(pid), stage.cpu(stage.server_pid))
    await run
    after = (perf_counter(), stage.cpu(pid), stage.cpu(stage.server_pid))
    wall, worker, server = ((end - begin) * 1000 / turns for begin, end in zip(before, after, strict=True))
    return wall, worker, server
