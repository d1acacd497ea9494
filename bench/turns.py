"""Compare the time and processor time per turn with those of a minimal hand-written loop on the same server."""

from asyncio import gather
from collections.abc import Awaitable
from statistics import median
from time import perf_counter
from typing import Any

from temporalio.client import Client

from bench.floor import QUEUE as FLOOR_QUEUE
from bench.floor import FloorLoop
from bench.minimal import QUEUE, MinimalLoop
from bench.report import spread, table
from bench.stage import QUEUE as LOOM_QUEUE
from bench.stage import Stage

LOOPS = ("loom", "minimal lean", "minimal whole")
SHAPES = ((20, 1), (100, 1), (10, 8))
"""The runs that are compared with the floor: the number of turns, and of tool calls in each turn."""


async def turn_cost(stage: Stage, *, pairs: int, turns: int) -> str:
    """Return the medians of interleaved runs with `turns` turns. Each turn has a tool result of 2 KB."""
    stage.start_worker("minimal", "bench.minimal", stage.model_url)
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    for loop in LOOPS:
        await _one(stage, client, loop, 10, "warm")
    figures: dict[str, list[tuple[float, float, float]]] = {loop: [] for loop in LOOPS}
    for number in range(pairs):
        for loop in LOOPS if number % 2 else reversed(LOOPS):
            figures[loop].append(await _one(stage, client, loop, turns, str(number)))
    rows: list[list[Any]] = []
    for loop in LOOPS:
        wall, worker, server = (list(column) for column in zip(*figures[loop], strict=True))
        ratio = [mine[0] / theirs[0] for mine, theirs in zip(figures["loom"], figures[loop], strict=True)]
        rows.append([loop, spread(wall, "ms"), spread(worker, "ms"), spread(server, "ms"), f"{median(ratio):.2f}"])
    head = ["loop", "time per turn", "worker CPU", "server CPU", "Loom's time ÷ this loop's time (median of pairs)"]
    return (
        f"## Time per turn\n\nEach loop ran {turns} turns in each of {pairs} interleaved rounds. All loops used the"
        " same model server and the same SDK.\n*lean* keeps the conversation only in the worker's memory, where it"
        " can't be recovered after a crash.\n*whole* sends the whole conversation in each turn.\n\n" + table(head, rows)
    )


async def floor_cost(stage: Stage, *, rounds: int = 5) -> str:
    """Return how Loom compares with a loop that does nothing but last, both with a model in the worker's process."""
    stage.start_worker("floor", "bench.floor")
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    rows: list[list[Any]] = []
    for turns, calls in SHAPES:
        figures: dict[str, list[tuple[float, float, float]]] = {"loom": [], "floor": []}
        beside = stage.cpu_beside(stage.workers["loom"].pid)
        for number in range(-1, rounds):
            for loop in figures if number % 2 else reversed(figures):
                task = f"turns={turns} calls={calls} round={number}"
                run = run_immediate(stage, client, loop, task)
                figures[loop].append(await _measured(stage, stage.workers[loop].pid, run, turns))
        beside = (stage.cpu_beside(stage.workers["loom"].pid) - beside) * 1000 / (turns * (rounds + 1))
        loom, floor = ([*zip(*measured[1:], strict=True)] for measured in (figures["loom"], figures["floor"]))
        ratios = [median(mine / theirs for mine, theirs in zip(loom[at], floor[at], strict=True)) for at in range(2)]
        shown = [spread([*values], "ms") for values in (loom[0], floor[0], loom[1], floor[1])]
        rows.append([turns, calls, *shown[:2], f"{ratios[0]:.2f}", *shown[2:], f"{ratios[1]:.2f}", f"{beside:.1f} ms"])
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
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    rows: list[list[Any]] = []
    for runs in (1, 20, 100):
        rates: dict[str, list[float]] = {"loom": [], "floor": []}
        for number in range(rounds):
            for loop in rates if number % 2 else reversed(rates):
                task = f"turns={turns} calls=1 of {runs} round={number}"
                begun = perf_counter()
                await gather(*(run_immediate(stage, client, loop, f"{task} run={run}") for run in range(runs)))
                rates[loop].append(runs * turns / (perf_counter() - begun))
        ratio = median(mine / theirs for mine, theirs in zip(rates["loom"], rates["floor"], strict=True))
        rows.append([runs, *(spread(rates[loop], "/s") for loop in rates), f"{ratio:.2f}"])
    head = ["runs at once", "turns of Loom", "turns of the floor", "Loom ÷ floor"]
    return (
        f"## Throughput\n\nRuns of {turns} turns with one tool call each start at the same time. There is one worker of"
        f" each kind, with the same\nmodel as above. The figures are medians of {rounds} interleaved rounds.\n\n"
        + table(head, rows)
    )


async def run_immediate(stage: Stage, client: Client, loop: str, task: str) -> str:
    """Run once with a model that answers at once, and return the run's ID."""
    run_id = f"bench-immediate-{loop} {task}".replace(" ", "-")
    if loop == "loom":
        request = {"task": task, "max_turns": 10_000, "model": "immediate:any"}
        await client.execute_workflow("AgentRun", request, id=run_id, task_queue=LOOM_QUEUE)
    else:
        args = [task, stage.env["LOOM_WORKSPACE"]]
        await client.execute_workflow(FloorLoop.run, args=args, id=run_id, task_queue=FLOOR_QUEUE)
    return run_id


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
