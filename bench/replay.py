"""Measure how long a worker takes to restore a run from its history, compared with the floor."""

from time import perf_counter
from typing import Any, Final

from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from bench.floor import FloorLoop
from bench.report import ratio_of, section, spread, table
from bench.stage import Stage
from bench.targets import Section, Target
from bench.turns import warm_loops
from loom.client import LoomClient
from loom.composition.replay import replayer

LOOM: Final = "Loom"
SANDBOXED: Final = "floor"
BARE: Final = "floor outside the sandbox"


async def replay_cost(stage: Stage, *, rounds: int = 5, turns: int = 200) -> Section:
    """Return the time of replays of one run."""
    runs = await warm_loops(stage, "for replay", "loom", "floor")
    task = f"turns={turns} calls=1 to replay"
    async with LoomClient.connected(stage.settings()) as loom:
        converter, client = loom.temporal.data_converter, loom.temporal
        ids = {name: await run(task) for name, run in runs.items()}
        found = {name: await client.get_workflow_handle(run_id).fetch_history() for name, run_id in ids.items()}
        histories = {LOOM: found["loom"], SANDBOXED: found["floor"], BARE: found["floor"]}
        runner, floor = UnsandboxedWorkflowRunner(), pydantic_data_converter
        replayers = {
            LOOM: replayer(converter),
            SANDBOXED: Replayer(workflows=[FloorLoop], data_converter=floor),
            BARE: Replayer(workflows=[FloorLoop], data_converter=floor, workflow_runner=runner),
        }
        times: dict[str, list[float]] = {name: [] for name in replayers}
        for number in range(-1, rounds):
            for name in replayers if number % 2 else reversed(replayers):
                took = await _milliseconds(replayers[name], histories[name])
                if number >= 0:
                    times[name].append(took)
    rows: list[list[Any]] = []
    for name, mine in times.items():
        ratio = ratio_of(times[LOOM], mine)
        size = sum(event.ByteSize() for event in histories[name].events)
        rows.append([name, len(histories[name].events), size, spread(mine, "ms"), f"{ratio:.2f}"])
    head = ["loop", "events", "bytes", "time", "Loom's time ÷ this loop's time (median of rounds)"]
    text = (
        "A worker that takes over a run replays its history. Here, Temporal's `Replayer` does so for a run of"
        f" {turns} turns with one tool call each. The figures are medians of {rounds} interleaved rounds after a"
        " warm-up. The histories were fetched before, so the comparison hides how long a server takes to send"
        " them. The floor's worker uses Temporal's sandbox, which is the SDK's default. Loom's worker doesn't use"
        " it, so the target is compared with the floor outside the sandbox."
    )
    what = f"replay of {turns} turns ÷ floor outside the sandbox"
    slower = Target(what=what, measured=ratio_of(times[LOOM], times[BARE]), at_most=1.2)
    return Section(section("Replay", text, table(head, rows)), (slower,))


async def _milliseconds(replayer: Replayer, history: WorkflowHistory) -> float:
    begun = perf_counter()
    await replayer.replay_workflow(history)
    return (perf_counter() - begun) * 1000
