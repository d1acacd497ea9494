"""Measure whether a second worker on the same machine slows down many runs."""

from asyncio import gather
from statistics import median
from time import perf_counter
from typing import Final

from temporalio.client import Client

from bench.report import section, spread, table
from bench.stage import Stage
from bench.targets import Section, Target
from bench.turns import Loop, loops

SECOND: Final = "second"
WARM: Final = 20
"""Number of runs that warm up the workers in each round."""


async def two_workers(stage: Stage, *, rounds: int = 3, runs: int = 100, turns: int = 5) -> Section:
    """Return how many turns per second many runs make together, with one worker and with two."""
    stage.needs_worker("loom", "worker")
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    rates: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for workers in rates if number % 2 else reversed(rates):
            task = f"turns={turns} calls=1 workers={workers} round={number}"
            rates[workers].append(await _rate(stage, client, workers, task, runs) * turns)
    ratio = median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    rows = [["one", spread(rates[1], "/s"), "1.00"], ["two", spread(rates[2], "/s"), f"{ratio:.2f}"]]
    text = (
        f"{runs} runs of {turns} turns with one tool call each start at the same time, with the same model as"
        f" above. Both workers serve the same task queue. The figures are medians of {rounds} interleaved rounds,"
        " each after a warm-up of its workers. The workers share the machine with the server and with the process"
        " that starts the runs, so the comparison hides what a second worker adds on a machine of its own."
    )
    shown = section("Two workers", text, table(["workers", "turns", "÷ one worker (median of pairs)"], rows))
    return Section(shown, (Target(what="turns per second of two workers ÷ one worker", measured=ratio, at_least=1),))


async def _rate(stage: Stage, client: Client, workers: int, task: str, runs: int) -> float:
    """Return the number of runs per second."""
    loom, names = loops(stage, client)["loom"], ["loom"]
    if workers == 2:
        stage.start_worker(SECOND, "loom._worker")
        await stage.until_serving(client, SECOND)
        names.append(SECOND)
    await _all(loom, f"{task} warm", WARM)
    await stage.until_idle(*names)
    begun = perf_counter()
    await _all(loom, task, runs)
    rate = runs / (perf_counter() - begun)
    if workers == 2:
        stage.stop_worker(SECOND)
    return rate


async def _all(loom: Loop, task: str, runs: int) -> None:
    await gather(*(loom(f"{task} run={run}") for run in range(runs)))
