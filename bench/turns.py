"""Compare the time and processor time per turn with those of a minimal hand-written loop on the same server."""

from asyncio import gather
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from temporalio.client import Client

from bench.floor import BARE_QUEUE, FloorLoop
from bench.floor import QUEUE as FLOOR_QUEUE
from bench.minimal import QUEUE, MinimalLoop
from bench.report import ratio, ratio_of, section, spread, table
from bench.shape import OTHER, QUICK, Shape
from bench.stage import QUEUE as LOOM_QUEUE
from bench.stage import Stage, Worker
from bench.targets import Section, Target

LOOPS = ("loom", "minimal lean", "minimal whole")
Loop = Callable[[str], Awaitable[str]]
"""Runs a task to its end, and returns the run's ID."""
FORGETFUL_QUEUE: Final = f"{LOOM_QUEUE}-forgetful"
SHAPES: Final = (Shape(20), Shape(100), Shape(20, tool=OTHER), Shape(10, calls=8))
"""The runs that are compared with the floor."""
SLOWEST: Final = {(QUICK, 1): 1.0, (OTHER, 1): 1.2, (QUICK, 8): 1.2}
"""The targets: how many times as long a turn of Loom may take, by its tool and the number of its calls."""
MOST_CPU: Final = 1.3
"""The target: how many times as much processor time Loom's worker may take for a turn."""
MOST_IN_ALL: Final = 2.0
"""The target: the same with the processes that write memory, once they have written it."""
MANY: Final = Shape(10)
"""The runs that are started at the same time."""
SLOWEST_OF_MANY: Final = {20: 0.8, 100: 0.8}
"""The targets: the share of the floor's turns that Loom makes while so many runs are active."""
MEMORY_SHARE: Final = {20: 5}
"""The target: the percentage of turns that Loom may lose to memory while so many runs are active."""


class Took(NamedTuple):
    """What a run took, in milliseconds per turn."""

    wall: float
    worker: float
    """The worker's processor time while the run lasted."""
    server: float
    """The processor time of Temporal's server while the run lasted."""
    in_all: float
    """The processor time of the worker and its children until they are idle."""


class Figures(NamedTuple):
    """What the runs of one loop took."""

    wall: Sequence[float]
    worker: Sequence[float]
    server: Sequence[float]
    in_all: Sequence[float]


async def turn_cost(stage: Stage, *, rounds: int = 5, turns: int = 100) -> Section:
    """Return the medians of interleaved runs with `turns` turns. Each turn has a tool result of 2 KB."""
    stage.needs_worker("loom", "worker")
    stage.needs_worker("minimal", "bench.minimal", stage.model_url)
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    for loop in LOOPS:
        await _one(stage, client, loop, 10, "warm")
    took: dict[str, list[Took]] = {loop: [] for loop in LOOPS}
    for number in range(rounds):
        for loop in LOOPS if number % 2 else reversed(LOOPS):
            took[loop].append(await _one(stage, client, loop, turns, str(number)))
    figures = {loop: Figures(*zip(*each, strict=True)) for loop, each in took.items()}
    rows: list[list[Any]] = []
    for loop, (wall, worker, server, _) in figures.items():
        times = ratio(figures["loom"].wall, wall)
        rows.append([loop, spread(wall, "ms"), spread(worker, "ms"), spread(server, "ms"), times])
    head = ["loop", "time per turn", "worker CPU", "server CPU", "Loom's time ÷ this loop's time (median of pairs)"]
    return Section(
        f"## Time per turn\n\nEach loop ran {turns} turns in each of {rounds} interleaved rounds. All loops used the"
        " same model server and the same SDK.\n*lean* keeps the conversation only in the worker's memory, where it"
        " can't be recovered after a crash.\n*whole* sends the whole conversation in each turn. Both run in Temporal's"
        " workflow sandbox, which is the SDK's default.\n\n" + table(head, rows)
    )


async def floor_cost(stage: Stage, *, rounds: int = 5, shape: Shape) -> Section:
    """Return how Loom compares with a loop that does nothing but last, both with a model in the worker's process."""
    compared = await warm_loops(stage, f"for {shape}", "loom", "floor", "bare floor")
    figures = await turn_figures(stage, compared, shape, rounds)
    loom, floor = figures["loom"], figures["floor"]
    rows = [
        [
            *(told(loop), spread(mine.wall, "ms"), ratio(loom.wall, mine.wall)),
            *(spread(mine.worker, "ms"), ratio(loom.worker, mine.worker)),
            *(spread(mine.in_all, "ms"), ratio(loom.in_all, mine.in_all), spread(mine.server, "ms")),
        ]
        for loop, mine in figures.items()
    ]
    head = ["loop"]
    for figure in ("time", "worker's CPU", "CPU until idle"):
        head += [figure, "Loom ÷ this"]
    shown = f"### {described(shape).capitalize()}\n\n" + table([*head, "server's CPU"], rows)
    compare = (
        ("time per turn", loom.wall, floor.wall, SLOWEST[shape.tool, shape.calls]),
        ("worker's CPU per turn", loom.worker, floor.worker, MOST_CPU),
        ("CPU per turn with memory's processes", loom.in_all, floor.in_all, MOST_IN_ALL),
    )
    targets = [
        Target(what=f"{what} ÷ floor, {described(shape)}", measured=ratio_of(ours, theirs), at_most=most)
        for what, ours, theirs, most in compare
    ]
    if shape != SHAPES[0]:
        return Section(shown, tuple(targets))
    text = (
        "The model and the tool answer at once in the worker's process, without HTTP and without an SDK. Their cost"
        " hides what Loom itself costs in the comparison above. The *floor* is a hand-written loop without any"
        " features (`bench/floor.py`). It runs in Temporal's workflow sandbox, which is the SDK's default, and once"
        " more outside the sandbox, like Loom. The figures are per turn. They are medians of"
        f" {rounds} interleaved rounds, and the ratios are medians of pairs. *CPU until idle* is the processor time of"
        " the worker and its children, until all memories of the run have been written and embedded. Each tool call"
        " of the floor is an activity. Loom runs a quick read in the activity that called the model. The *other tool*"
        " reads the same file, but isn't declared quick."
    )
    return Section(section("Time per turn without a provider", text, shown), tuple(targets))


async def throughput(stage: Stage, *, rounds: int = 3, counts: Sequence[int] = (1, 20, 100)) -> Section:
    """Return how many turns per second many runs make together, with the worker of Loom and with that of the floor."""
    compared = await warm_loops(stage, "for throughput", "loom", "loom without memory", "floor")
    rows: list[list[Any]] = []
    targets: list[Target] = []
    for runs in counts:
        rates = await turn_rates(stage, compared, MANY, runs, rounds)
        loom, floor = rates["loom"], rates["floor"]
        shares = [100 * (1 - one / other) for one, other in zip(loom, rates["loom without memory"], strict=True)]
        made = (spread(each, "/s") for each in rates.values())
        rows.append([runs, *made, ratio(loom, floor), f"{median(shares):.0f} %"])
        if runs in SLOWEST_OF_MANY:
            what = f"turns per second ÷ floor, {runs} runs at once"
            targets.append(Target(what=what, measured=ratio_of(loom, floor), at_least=SLOWEST_OF_MANY[runs]))
        if runs in MEMORY_SHARE:
            what = f"share of the turns per second that memory takes, {runs} runs at once"
            targets.append(Target(what=what, measured=median(shares), at_most=MEMORY_SHARE[runs], unit=" %"))
    head = ["runs at once", *(f"turns of {told(loop)}" for loop in compared)]
    head += ["Loom ÷ floor", "memory's share"]
    text = (
        f"Runs of {MANY.turns} turns with one quick read each start at the same time. There is one worker of each kind,"
        f" with the same model as above. The floor runs in Temporal's sandbox. The figures are medians of {rounds}"
        " interleaved rounds. Before each measurement, all workers are idle and all memories have been written."
        " *Memory's share* is the share of the turns per second that the runs lose to memory."
    )
    return Section(section("Throughput", text, table(head, rows)), tuple(targets))


async def warm_loops(stage: Stage, purpose: str, *names: str) -> dict[str, Loop]:
    """Return these loops. Their workers have served a run, and are idle."""
    for name in names:
        if name not in stage.workers:
            start_worker(stage, name)
    every = loops(stage, await Client.connect(stage.env["TEMPORAL_ADDRESS"]))
    warm = {name: every[name] for name in names}
    await gather(*(run(f"{Shape(20)} warm-up {purpose}") for run in warm.values()))
    await stage.until_idle(*warm)
    return warm


def start_worker(stage: Stage, loop: str) -> Worker:
    """Start or restart the worker of a loop.

    The worker without memory uses another Redis database. Otherwise, the other worker would store memories of its runs.
    """
    redis = urlsplit(stage.env["LOOM_REDIS_URL"])._replace(path="/1").geturl()
    forgetful = {"LOOM_MEMORY": "off", "LOOM_TASK_QUEUE": FORGETFUL_QUEUE, "LOOM_REDIS_URL": redis}
    match loop:
        case "loom":
            return stage.start_worker(loop, "loom._worker")
        case "loom without memory":
            return stage.start_worker(loop, "loom._worker", **forgetful)
        case "floor":
            return stage.start_worker(loop, "bench.floor")
        case _:
            return stage.start_worker(loop, "bench.floor", BARE_QUEUE)


def loops(stage: Stage, client: Client) -> dict[str, Loop]:
    """Return Loom's loops and the floors, all with a model that answers at once."""

    async def loom(name: str, queue: str, task: str) -> str:
        request = {"task": task, "max_turns": 10_000, "model": "immediate:any"}
        await client.execute_workflow("AgentRun", request, id=run_id(name, task), task_queue=queue)
        return run_id(name, task)

    async def floor(name: str, queue: str, task: str) -> str:
        args = [task, stage.env["LOOM_WORKSPACE"]]
        await client.execute_workflow(FloorLoop.run, args=args, id=run_id(name, task), task_queue=queue)
        return run_id(name, task)

    return {
        "loom": partial(loom, "loom", LOOM_QUEUE),
        "loom without memory": partial(loom, "forgetful", FORGETFUL_QUEUE),
        "floor": partial(floor, "floor", FLOOR_QUEUE),
        "bare floor": partial(floor, "bare", BARE_QUEUE),
    }


def told(loop: str) -> str:
    """Return what a table calls the loop."""
    names = {"loom": "Loom", "loom without memory": "Loom without memory", "bare floor": "floor outside the sandbox"}
    return names.get(loop, loop)


def described(shape: Shape) -> str:
    """Return what a table calls the shape."""
    tool = "quick read" if shape.tool == QUICK else "call of the other tool"
    return f"{shape.turns} turns with {shape.calls} {tool}{'s' * (shape.calls > 1)} each"


def run_id(loop: str, task: str) -> str:
    """Return the ID of this loop's run of the task."""
    return f"bench-immediate-{loop} {task}".replace(" ", "-")


async def turn_figures(stage: Stage, compared: dict[str, Loop], shape: Shape, rounds: int) -> dict[str, Figures]:
    """Return the figures of each loop in interleaved rounds, after a round that warms up the workers."""
    took: dict[str, list[Took]] = {loop: [] for loop in compared}
    for number in range(-1, rounds):
        for loop in compared if number % 2 else reversed(compared):
            took[loop].append(await _measured(stage, loop, compared[loop](f"{shape} round={number}"), shape.turns))
    return {loop: Figures(*zip(*each[1:], strict=True)) for loop, each in took.items()}


async def turn_rates(
    stage: Stage, compared: dict[str, Loop], shape: Shape, runs: int, rounds: int
) -> dict[str, list[float]]:
    """Return the turns per second that runs of each loop make together in interleaved rounds."""
    rates: dict[str, list[float]] = {loop: [] for loop in compared}
    for number in range(rounds):
        for loop in compared if number % 2 else reversed(compared):
            begun = perf_counter()
            await gather(*(compared[loop](f"{shape} of {runs} round={number} run={run}") for run in range(runs)))
            rates[loop].append(runs * shape.turns / (perf_counter() - begun))
            await stage.until_idle(loop)
    return rates


async def _one(stage: Stage, client: Client, loop: str, turns: int, label: str) -> Took:
    """Run the task once."""
    run_id = f"bench-{loop.replace(' ', '-')}-{turns}-{label}"
    task = f"turns={turns}"
    if loop == "loom":
        request = {"task": task, "max_turns": 1000}
        started = client.execute_workflow("AgentRun", request, id=run_id, task_queue=LOOM_QUEUE)
    else:
        args: list[Any] = [task, stage.env["LOOM_WORKSPACE"], loop.endswith("whole")]
        started = client.execute_workflow(MinimalLoop.run, args=args, id=run_id, task_queue=QUEUE)
    return await _measured(stage, "loom" if loop == "loom" else "minimal", started, turns)


async def _measured(stage: Stage, worker: str, run: Awaitable[Any], turns: int) -> Took:
    """Wait for the run, and then until the worker is idle."""
    pid, in_all = stage.workers[worker].pid, stage.cpu_in_all(worker)
    before = (perf_counter(), stage.cpu(pid), stage.cpu(stage.server_pid), in_all)
    await run
    after = (perf_counter(), stage.cpu(pid), stage.cpu(stage.server_pid))
    await stage.until_idle(worker)
    ends = (*after, stage.cpu_in_all(worker))
    return Took(*((end - begin) * 1000 / turns for begin, end in zip(before, ends, strict=True)))
