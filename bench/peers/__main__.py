"""Compare Loom with other agent loops on Temporal (`make bench-peers`). With `--write`, replace the page of figures.

All loops call a model and a tool that answer at once in the worker's process, as in `bench.floor`. The peers' workers
have an interpreter of their own, with the packages in requirements.txt.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from bench.report import machine, ratio, ratio_of, spread, table
from bench.stage import Stage, stage
from bench.targets import Section, Target, target_table
from bench.turns import SHAPES, Loop, loops, run_id, turn_figures, turn_rates

ROOT: Final = Path(__file__).parents[2]
DOC: Final = ROOT / "docs" / "measurements-peers.md"
PYTHON: Final = ROOT / ".venv" / "peers" / "bin" / "python"
REQUIREMENTS: Final = Path(__file__).parent / "requirements.txt"
PEERS: Final = {"openai-agents": "bench.peers.openai_agents_worker", "pydantic-ai": "bench.peers.pydantic_ai_worker"}
"""The names of the peers' loops, and the modules that serve them."""

HIDDEN: Final = """\
## What the comparison hides

- Loom does more in each turn than the other loops. Its worker writes live events and transcripts to Redis, checks each
  tool call against permission rules, redacts secrets and counts costs. Other processes write the run's memory to
  Postgres. *Beside it* is their CPU time per turn, which is not part of the worker's CPU time.
- Loom and the floor send only new messages with a model call, and the worker keeps the others. If the worker crashes,
  Loom recovers them, but the floor can't. The peers send the whole conversation with each model call, so their cost per
  turn grows with the number of turns.
- The peers are set up as their documentation shows, with their plugins and data converters. Only their limits on turns
  are lifted. Streaming, continue-as-new and instrumentation are off, as they are by default. Tracing in the OpenAI
  Agents SDK is on by default, but it is off here, since it sends spans to OpenAI.
- The peers and the floor run in Temporal's workflow sandbox, which is the default. Loom's worker doesn't use it.
- All workers run during the whole measurement, but only one of them has runs at a time. Loom may still write the memory
  of its last run while the next loop is measured.
- Calls to a real model take seconds, and the difference between two loops is a small part of such a turn."""


async def measure(python: Path, rounds: int) -> list[str]:
    """Return all sections as Markdown, in order."""
    versions = _versions(python)
    with stage() as ready:
        ready.start_worker("loom", "worker")
        ready.start_worker("floor", "bench.floor")
        for peer, module in PEERS.items():
            ready.start_worker(peer, module, _queue(peer), python=str(python))
        client = await Client.connect(ready.env["TEMPORAL_ADDRESS"])
        compared = loops(ready, client) | {peer: partial(_run, client, peer) for peer in PEERS}
        await asyncio.gather(*(loop("turns=5 calls=1 warm-up") for loop in compared.values()))
        sections = [await _turn_cost(ready, compared, rounds), await _throughput(compared, min(rounds, 3))]
    targets = target_table(target for found in sections for target in found.targets)
    return [machine(), f"Packages of the peers: {versions}.", targets, *(found.text for found in sections), HIDDEN]


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


async def _turn_cost(stage: Stage, compared: dict[str, Loop], rounds: int) -> Section:
    rows: list[list[Any]] = []
    targets: list[Target] = []
    for turns, calls in SHAPES:
        figures, beside = await turn_figures(stage, compared, turns, calls, rounds)
        floor_wall, floor_worker, _ = zip(*figures["floor"], strict=True)
        for loop, measured in figures.items():
            wall, worker, server = zip(*measured, strict=True)
            row = [turns, calls, loop, spread(wall, "ms"), ratio(wall, floor_wall)]
            row += [spread(worker, "ms"), ratio(worker, floor_worker), spread(server, "ms")]
            rows.append([*row, f"{beside:.1f} ms" if loop == "loom" else ""])
            if loop in PEERS:
                share = ratio_of(next(zip(*figures["loom"], strict=True)), wall)
                what = f"Loom's time per turn ÷ {loop}'s, {turns} turns with {calls} call{'s' * (calls > 1)} each"
                targets.append(Target(what=what, measured=share, at_most=1))
    head = ["turns", "calls per turn", "loop", "time per turn", "÷ floor", "worker CPU", "÷ floor", "server CPU"]
    text = (
        "## Time per turn\n\nEach turn is one model call with tool calls that return 2 KB each. The *floor* is a"
        " hand-written loop without any features\n(`bench/floor.py`). The figures are medians of"
        f" {rounds} interleaved rounds, and the ratios are medians of pairs.\n\n" + table([*head, "beside it"], rows)
    )
    return Section(text, tuple(targets))


async def _throughput(compared: dict[str, Loop], rounds: int, runs: int = 100, turns: int = 5) -> Section:
    rates = await turn_rates(compared, runs, turns, rounds)
    rows = [[loop, spread(measured, "/s"), ratio(measured, rates["floor"])] for loop, measured in rates.items()]
    text = (
        f"## Throughput\n\n{runs} runs of {turns} turns with one tool call each start at the same time. Each loop has"
        f" one worker. The figures are medians of {rounds}\ninterleaved rounds.\n\n"
        + table(["loop", "turns", "÷ floor"], rows)
    )
    targets = [
        Target(
            what=f"Loom's turns per second ÷ {peer}'s, {runs} runs",
            measured=ratio_of(rates["loom"], rates[peer]),
            at_least=1,
        )
        for peer in PEERS
    ]
    return Section(text, tuple(targets))


def _versions(python: Path) -> str:
    """Return the versions of the required packages that this interpreter has."""
    names = [line.partition("==")[0] for line in REQUIREMENTS.read_text().splitlines()]
    told = "import sys, importlib.metadata as m; print(', '.join(f'{name} {m.version(name)}' for name in sys.argv[1:]))"
    return subprocess.run([python, "-c", told, *names], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of interleaved rounds for the time per turn")
    parser.add_argument("--python", type=Path, default=PYTHON, help="interpreter of the peers' workers")
    parser.add_argument("--write", action="store_true", help=f"replace {DOC.name}")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    sections = asyncio.run(measure(given.python, given.rounds))
    text = (
        "# Comparison with other agent loops\n\n`make bench-peers` compares Loom with two other agent loops on"
        " Temporal: the OpenAI Agents SDK\nand Pydantic AI, each with its own Temporal integration. You can run it on"
        " your own machine.\n\n" + "\n\n".join(sections) + "\n"
    )
    sys.stdout.write(text)
    if given.write:
        DOC.write_text(text)


if __name__ == "__main__":
    main()
