"""Time and processor time per turn, beside a hand-written minimal loop on the same server, in turns."""

from statistics import median
from time import perf_counter
from typing import Any

from temporalio.client import Client

from bench.minimal import QUEUE, MinimalLoop
from bench.report import spread, table
from bench.stage import QUEUE as LOOM_QUEUE
from bench.stage import Stage

LOOPS = ("loom", "minimal lean", "minimal whole")


async def turn_cost(stage: Stage, *, pairs: int, turns: int) -> str:
    """Median of interleaved runs of `turns` turns with one 2 KB tool result each."""
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
    head = ["loop", "time per turn", "worker CPU", "server CPU", "Loom's time ÷ this (median of pairs)"]
    return (
        f"## Time per turn\n\n{turns} turns a run, {pairs} interleaved rounds, the same model server through the same"
        " SDK. *lean* keeps the conversation in the worker's memory, unrecoverably; *whole* sends it each time.\n\n"
        + table(head, rows)
    )


async def _one(stage: Stage, client: Client, loop: str, turns: int, label: str) -> tuple[float, float, float]:
    """Milliseconds per turn: wall, worker CPU, server CPU."""
    pid = stage.workers["loom" if loop == "loom" else "minimal"].pid
    before = (perf_counter(), stage.cpu(pid), stage.cpu(stage.server_pid))
    run_id = f"bench-{loop.replace(' ', '-')}-{turns}-{label}"
    task = f"turns={turns}"
    if loop == "loom":
        request = {"task": task, "max_turns": 1000}
        await client.execute_workflow("AgentRun", request, id=run_id, task_queue=LOOM_QUEUE)
    else:
        args: list[Any] = [task, stage.env["LOOM_WORKSPACE"], loop.endswith("whole")]
        await client.execute_workflow(MinimalLoop.run, args=args, id=run_id, task_queue=QUEUE)
    after = (perf_counter(), stage.cpu(pid), stage.cpu(stage.server_pid))
    wall, worker, server = ((end - begin) * 1000 / turns for begin, end in zip(before, after, strict=True))
    return wall, worker, server
