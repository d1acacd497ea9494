"""Compare Loom with other agent loops on Temporal (`make bench-peers`). With `--write`, replace the page of figures.

All loops call a model and a tool that answer at once in the worker's process, as in `bench.floor`. The peers' workers
have an interpreter of their own, with the packages in requirements.txt. To measure the page in parts, name the parts
and a folder that keeps their figures: `python -m bench.peers conversation --keep DIR`.
"""

import subprocess
from asyncio import gather
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from bench.parts import Page, Part, command_line
from bench.peers.conversation import conversation
from bench.report import ratio, ratio_of, section, spread, table
from bench.shape import Shape
from bench.stage import Stage
from bench.targets import Section, Target
from bench.turns import MANY, SHAPES, Loop, described, run_id, told, turn_figures, turn_rates, warm_loops

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = ROOT / ".venv" / "peers" / "bin" / "python"
"""The interpreter of the peers' workers, which `make bench-peers` installs."""
REQUIREMENTS: Final = Path(__file__).parent / "requirements.txt"
PEERS: Final = {"openai-agents": "bench.peers.openai_agents_worker", "pydantic-ai": "bench.peers.pydantic_ai_worker"}
"""The names of the peers' loops, and the modules that serve them."""

HIDDEN: Final = """\
## What the comparison hides

- Loom does more in each turn than the other loops. Its worker writes live events and transcripts to Redis, checks each
  tool call against permission rules, redacts secrets and counts costs. Other processes write the run's memory to
  Postgres. *CPU until idle* includes them, until all memories of the run have been written and embedded.
- Loom and the floor send only new messages with a model call, and the worker keeps the others. If the worker crashes,
  Loom recovers them, but the floor can't. The peers send the whole conversation with each model call, so their cost per
  turn grows with the number of turns.
- Loom runs a quick read in the activity that called the model. The other loops schedule an activity for each tool call,
  as Loom does if a tool isn't declared quick (*the other tool*).
- The peers are set up as their documentation shows, with their plugins and data converters. Only their limits on turns
  are lifted. Streaming, continue-as-new and instrumentation are off, as they are by default. Tracing in the OpenAI
  Agents SDK is on by default, but it is off here, since it sends spans to OpenAI.
- The peers and the floor run in Temporal's workflow sandbox, which is the default. Loom's worker doesn't use it.
- All workers run during the whole measurement, but only one of them has runs at a time.
- Calls to a real model take seconds, and the difference between two loops is a small part of such a turn."""


def page() -> Page:
    """Return the page, with the versions of the peers' packages."""
    names = [line.partition("==")[0] for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines()]
    asked = (
        "import sys, importlib.metadata as m; print(', '.join(f'{name} {m.version(name)}' for name in sys.argv[1:]))"
    )
    ran = subprocess.run([PYTHON, "-c", asked, *names], check=True, capture_output=True, text=True)
    begin = (
        "# Comparison with other agent loops\n\n`make bench-peers` compares Loom with two other agent loops on"
        " Temporal: the OpenAI Agents SDK\nand Pydantic AI, each with its own Temporal integration. You can run it on"
        f" your own machine.\n\nPackages of the peers: {ran.stdout.strip()}."
    )
    return Page(file=ROOT / "docs" / "measurements-peers.md", begin=begin, end=HIDDEN, module="bench.peers")


async def _compared(stage: Stage, purpose: str, *names: str) -> dict[str, Loop]:
    """Return these loops and those of the peers. Their workers have served a run, and are idle."""
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    peers = {peer: partial(_run, client, peer) for peer in PEERS}
    for peer, module in PEERS.items():
        stage.needs_worker(peer, module, _queue(peer), python=str(PYTHON))
    await gather(*(run(f"{Shape(5)} warm-up {purpose}") for run in peers.values()))
    return await warm_loops(stage, purpose, *names) | peers


async def _run(client: Client, peer: str, task: str) -> str:
    """Run the peer's agent to its end, and return the run's ID."""
    answer = await client.execute_workflow(
        "PeerLoop",
        task,
        id=run_id(peer, task),
        task_queue=_queue(peer),
        execution_timeout=timedelta(minutes=15),  # a failing workflow task would be retried for ever
    )
    assert answer == "finished", answer
    return run_id(peer, task)


def _queue(peer: str) -> str:
    return f"bench-{peer}"


async def turn_cost(stage: Stage, *, rounds: int, shape: Shape) -> Section:
    """Return what a turn of this shape takes in each loop."""
    compared = await _compared(stage, f"for {shape}", "loom", "floor")
    figures = await turn_figures(stage, compared, shape, rounds)
    floor = figures["floor"]
    rows = [
        [
            *(told(loop), spread(mine.wall, "ms"), ratio(mine.wall, floor.wall)),
            *(spread(mine.worker, "ms"), ratio(mine.worker, floor.worker)),
            *(spread(mine.in_all, "ms"), spread(mine.server, "ms")),
        ]
        for loop, mine in figures.items()
    ]
    head = ["loop", "time", "÷ floor", "worker's CPU", "÷ floor", "CPU until idle", "server's CPU"]
    shown = f"### {described(shape).capitalize()}\n\n" + table(head, rows)
    ours = figures["loom"]
    targets = tuple(
        Target(what=f"Loom's {what} ÷ {peer}'s, {described(shape)}", measured=measured, at_most=1)
        for peer in PEERS
        for what, measured in (
            ("time per turn", ratio_of(ours.wall, figures[peer].wall)),
            ("worker's CPU per turn", ratio_of(ours.worker, figures[peer].worker)),
            ("CPU per turn with memory's processes", ratio_of(ours.in_all, figures[peer].in_all)),
        )
    )
    if shape != SHAPES[0]:
        return Section(shown, targets)
    text = (
        "Each turn is one model call with tool calls that return 2 KB each. The *floor* is a hand-written loop without"
        " any features (`bench/floor.py`) in Temporal's sandbox. The figures are per turn. They are medians of"
        f" {rounds} interleaved rounds, and the ratios are medians of pairs."
    )
    return Section(section("Time per turn", text, shown), targets)


async def throughput(stage: Stage, *, rounds: int, counts: Sequence[int] = (20, 100)) -> Section:
    """Return how many turns per second many runs make together, with one worker for each loop."""
    compared = await _compared(stage, "for throughput", "loom", "floor")
    rows: list[list[Any]] = []
    targets: list[Target] = []
    for runs in counts:
        rates = await turn_rates(stage, compared, MANY, runs, rounds)
        rows += [[runs, told(loop), spread(mine, "/s"), ratio(mine, rates["floor"])] for loop, mine in rates.items()]
        for peer in PEERS:
            what = f"Loom's turns per second ÷ {peer}'s, {runs} runs"
            targets.append(Target(what=what, measured=ratio_of(rates["loom"], rates[peer]), at_least=1))
    text = (
        f"Runs of {MANY.turns} turns with one tool call each start at the same time. Each loop has one worker. The"
        f" figures are medians of {rounds} interleaved rounds. The floor runs in Temporal's sandbox."
    )
    head = ["runs at once", "loop", "turns", "÷ floor"]
    return Section(section("Throughput", text, table(head, rows)), tuple(targets))


async def long_conversation(stage: Stage) -> Section:
    """Return how the history of each loop grows in one long conversation."""
    return await conversation(stage, await _compared(stage, "for a conversation", "loom"))


def parts(rounds: int) -> Mapping[str, Part]:
    """Return the parts of the page, in order."""
    names = ("turns-20", "turns-100", "turns-other-tool", "turns-8-calls")
    return {
        "conversation": long_conversation,
        **{name: partial(turn_cost, rounds=rounds, shape=shape) for name, shape in zip(names, SHAPES, strict=True)},
        "throughput": partial(throughput, rounds=min(rounds, 3)),
    }


if __name__ == "__main__":
    command_line(__doc__, page(), parts, rounds=5)
