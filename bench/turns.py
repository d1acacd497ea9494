"""Compare the time and processor time per turn with those of a minimal hand-written loop on the same server."""

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


async def _one(stage: Stage, client: Client, loop: str, turns: int, label: str) -> tuple[float, float, float]:
    """Return milliseconds per turn: elapsed time, the worker's CPU time and the server's CPU time."""
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
