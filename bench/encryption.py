"""Compare a turn of a worker that encrypts with one of a worker that doesn't: `python -m bench.encryption`.

The model and the tool answer at once in the worker's process, so that nothing hides the difference. A second comparison
has a model over HTTP, as a real run does. Both workers do without memory, which they would write for each other.
"""

import asyncio
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

from temporalio.client import Client

from bench.report import ratio, spread, table
from bench.stage import QUEUE, Stage, stage
from loom.activities.adapters.encryption.key_ring import new_key, write_keys
from loom.composition.temporal_connection import connected
from loom.domain.core.messages import JsonObject

WORKERS: Final = ("off", "on")
TURNS: Final = 40
MODELS: Final = {
    "at once": ("immediate:any", f"turns={TURNS} calls=1"),
    "over HTTP": ("openai:scripted", f"turns={TURNS}"),
}
ROUNDS: Final = 7


async def encryption_cost(on: Stage) -> str:
    """Return the time and the processor time per turn of each worker, in interleaved rounds."""
    file, usual = on.folder / "keys", dict(on.env)
    write_keys(file, [new_key()])
    rows: list[list[Any]] = []
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        for name, keys in (("off", None), ("on", file)):
            on.env = {**usual, "LOOM_TASK_QUEUE": f"{QUEUE}-{name}", "LOOM_MEMORY": "off"}
            on.env |= {} if keys is None else {"LOOM_ENCRYPTION_KEYS": str(keys)}
            on.start_worker(name, "loom._worker")
            settings = on.settings().model_copy(update={"encryption_keys": keys})
            clients[name] = await stack.enter_async_context(connected(settings))
        for label, (model, task) in MODELS.items():
            figures: dict[str, list[tuple[float, float]]] = {name: [] for name in WORKERS}
            for number in range(-1, ROUNDS):
                for name in WORKERS if number % 2 else reversed(WORKERS):
                    request = {"task": task, "max_turns": 1000, "model": model, "tenant": "acme"}
                    measured = await _one(on, clients[name], name, request)
                    if number >= 0:
                        figures[name].append(measured)
            off_wall, off_cpu = zip(*figures["off"], strict=True)
            for name in WORKERS:
                wall, cpu = zip(*figures[name], strict=True)
                rows.append(
                    [label, name, spread(wall, "ms"), ratio(wall, off_wall), spread(cpu, "ms"), ratio(cpu, off_cpu)]
                )
    return table(["model answers", "encryption", "time per turn", "÷ off", "worker CPU", "÷ off"], rows)


async def _one(on: Stage, client: Client, name: str, request: JsonObject) -> tuple[float, float]:
    """Return milliseconds per turn: elapsed time, and the worker's CPU time."""
    pid, run_id = on.workers[name].pid, f"bench-{uuid4()}"
    begun, cpu = perf_counter(), on.cpu(pid)
    await client.execute_workflow("AgentRun", request, id=run_id, task_queue=f"{QUEUE}-{name}")
    return (perf_counter() - begun) * 1000 / TURNS, (on.cpu(pid) - cpu) * 1000 / TURNS


if __name__ == "__main__":
    with stage() as on:
        print(asyncio.run(encryption_cost(on)))
