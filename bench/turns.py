"""Compare the time and processor time per turn with those of a minimal hand-written loop on the same server."""

from asyncio import gather
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from temporalio.client import Client

from bench.floor import QUEUE as FLOOR_QUEUE
from bench.floor import FloorLoop
from bench.minimal import QUEUE, MinimalLoop
from bench.report import ratio, ratio_of, spread, table
from bench.stage import QUEUE as LOOM_QUEUE
from bench.stage import Stage
from bench.targets import Section, Target

LOOPS = ("loom", "minimal lean", "minimal whole")
Loop = Callable[[str], Awaitable[str]]
"""Runs a task to its end, and returns the run's ID."""
Figures = dict[str, list[tuple[float, float, float]]]
"""The milliseconds per turn of each loop's runs: elapsed time, the worker's CPU time and the server's CPU time."""
SHAPES = ((20, 1), (100, 1), (10, 8))
"""The runs that are compared with the floor: the number of turns, and of tool calls in each turn."""
SLOWEST = {1: 1.25, 8: 1.3}
"""The targets: how many times as long a turn of Loom may take, by the number of its tool calls."""
MOST_CPU = 1.6
"""The target: how many times as much processor time Loom's worker may take for a turn."""
SLOWEST_OF_MANY = 0.7
"""The target: the share of the floor's turns that Loom makes while 100 runs are active."""


async def turn_cost(stage: Stage, *, pairs: int, turns: int) -> Section:
    """Return the medians of interleaved runs with `turns` turns. Each turn has a tool result of 2 KB."""
    stage.needs_worker("loom", "worker")
    stage.needs_worker("minimal", "bench.minimal", stage.model_url)
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
    return Section(
        f"## Time per turn\n\nEach loop ran {turns} turns in each of {pairs} interleaved rounds. All loops used the"
        " same model server and the same SDK.\n*lean* keeps the conversation only in the worker's memory, where it"
        " can't be recovered after a crash.\n*whole* sends the whole conversation in each turn.\n\n" + table(head, rows)
    )


async def floor_cost(stage: Stage, *, rounds: int = 5) -> Section:
    """Return how Loom compares with a loop that does nothing but last, both with a model in the worker's process."""
    compared = await warm_loops(stage, "for turns")
    rows: list[list[Any]] = []
    targets: list[Target] = []
    for turns, calls in SHAPES:
        figures, beside = await turn_figures(stage, compared, turns, calls, rounds)
        (wall, worker, _), (floor_wall, floor_worker, _) = (zip(*figures[loop], strict=True) for loop in compared)
        shown = [spread(wall, "ms"), spread(floor_wall, "ms"), ratio(wall, floor_wall)]
        shown += [spread(worker, "ms"), spread(floor_worker, "ms"), ratio(worker, floor_worker)]
        rows.append([turns, calls, *shown, f"{beside:.1f} ms"])
        shape = f"{turns} turns with {calls} call{'s' * (calls > 1)} each"
        slower, costlier = ratio_of(wall, floor_wall), ratio_of(worker, floor_worker)
        targets.append(Target(what=f"time per turn ÷ floor, {shape}", measured=slower, at_most=SLOWEST[calls]))
        targets.append(Target(what=f"worker's CPU per turn ÷ floor, {shape}", measured=costlier, at_most=MOST_CPU))
    head = ["turns", "calls per turn", "Loom", "floor", "ratio", "Loom's worker CPU", "floor's", "ratio", "beside it"]
    text = (
        "## Time per turn without a provider\n\nThe model and the tool answer at once in the worker's process, without"
        " HTTP and without an SDK. Their cost\nhides what Loom itself costs in the comparison above. The *floor* is a"
        " hand-written loop without any features\n(`bench/floor.py`). The figures are medians of"
        f" {rounds} interleaved rounds, and the ratios are medians of pairs.\n*Beside it* is the CPU time per turn of"
        " the processes that write and embed Loom's memory.\n\n" + table(head, rows)
    )
    return Section(text, tuple(targets))


async def throughput(stage: Stage, *, rounds: int = 3, turns: int = 5) -> Section:
    """Return how many turns per second many runs make together, with the worker of Loom and with that of the floor."""
    compared = await warm_loops(stage, "for throughput")
    rows: list[list[Any]] = []
    share = 0.0
    for runs in (1, 20, 100):
        rates = await turn_rates(compared, runs, turns, rounds)
        share = ratio_of(rates["loom"], rates["floor"])
        rows.append([runs, *(spread(rates[loop], "/s") for loop in rates), ratio(rates["loom"], rates["floor"])])
    head = ["runs at once", "turns of Loom", "turns of the floor", "Loom ÷ floor"]
    text = (
        f"## Throughput\n\nRuns of {turns} turns with one tool call each start at the same time. There is one worker of"
        f" each kind, with the same\nmodel as above. The figures are medians of {rounds} interleaved rounds.\n\n"
        + table(head, rows)
    )
    many = Target(what="turns per second ÷ floor, 100 runs at once", measured=share, at_least=SLOWEST_OF_MANY)
    return Section(text, (many,))


async def warm_loops(stage: Stage, purpose: str) -> dict[str, Loop]:
    """Return the loops of Loom and of the floor. Their workers have served a run, and are idle."""
    stage.needs_worker("loom", "worker")
    stage.needs_worker("floor", "bench.floor")
    warm = loops(stage, await Client.connect(stage.env["TEMPORAL_ADDRESS"]))
    await gather(*(run(f"turns=20 calls=1 warm-up {purpose}") for run in warm.values()))
    await stage.until_idle(*warm)
    return warm


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
