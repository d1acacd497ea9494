"""Measure one very long run: `python -m bench.long_run --turns 3000 --messages 1000` (`make long-run`).

The worker runs in its own process. In each turn, a scripted model behind HTTP reads a file. Meanwhile, a person sends
messages. The bytes per turn and the worker's memory must not grow. With `--write`, replace the figures in
docs/limits.md.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

import psutil
import psycopg
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from bench.report import machine, put, table
from bench.stage import stage
from loom.activities.adapters.temporal.run_history import executions
from loom.client import LoomClient
from loom.domain.core.requests import RunResult
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, text

DOC: Final = Path(__file__).parent.parent / "docs" / "limits.md"
MARKS: Final = ("<!-- long run: begin -->", "<!-- long run: end -->")
SAMPLES: Final = 20
"""The number of times that the worker's memory is measured."""
MEGABYTE: Final = 1024 * 1024


@dataclass
class Model:
    """Reads the same file in each turn, and answers after the last one."""

    turns: int
    made: int = 0
    """The number of replies with a call, whichever execution or compressed conversation they belong to."""

    def reply(self, request: SeenRequest) -> Reply:
        """Return the next reply. A request without tools asks for a summary."""
        if not request.body.get("tools"):
            return text("Everything went well so far.")
        if self.made == self.turns - 1:
            return text("finished")
        self.made += 1
        return calls(ToolUse("read_file", {"path": "data.txt"}, f"call_{self.made}"))


@dataclass
class Long:
    """What was measured."""

    seconds: float = 0.0
    memory: list[tuple[int, float]] = field(default_factory=list)
    """The turn and the worker's resident memory in MB at that turn."""
    histories: Sequence[WorkflowHistory] = ()
    payloads: Sequence[int] = ()
    """The sizes in bytes of the payloads outside the history, oldest first. They are the states that are carried on."""


async def measure(turns: int, messages: int) -> str:
    """Return the figures as Markdown."""
    model, long = Model(turns=turns), Long()
    with stage() as ready:
        async with ModelServer(model.reply, record=False) as server:
            ready.env["OPENAI_BASE_URL"] = server.openai_url
            worker = ready.start_worker("loom", "worker")
            async with LoomClient.connected(ready.settings()) as loom:
                begun = perf_counter()
                run_id = await loom.start("Read the data again and again.", max_turns=turns + 1)
                watching = asyncio.create_task(_watch(model, worker.pid, long))
                talking = asyncio.create_task(_talk(loom, run_id, model, messages))
                result = await loom.result(run_id)
                long.seconds = perf_counter() - begun
                for task in (watching, talking):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                found = [history async for history in executions(loom.temporal, run_id)]
                long.histories = found[::-1]
        long.payloads = _payloads(ready.env["LOOM_DATABASE_URL"])
    return report(result, long, messages)


async def _talk(loom: LoomClient, run_id: str, model: Model, messages: int) -> None:
    """Send messages, evenly spread over the turns."""
    for number in range(messages):
        while model.made < number * model.turns // messages:
            await asyncio.sleep(0.01)
        await loom.send(run_id, f"message {number}: go on")


async def _watch(model: Model, pid: int, long: Long) -> None:
    """Measure the worker's memory, evenly spread over the turns."""
    worker = psutil.Process(pid)
    for number in range(1, SAMPLES):
        while model.made < number * model.turns // SAMPLES:
            await asyncio.sleep(0.05)
        long.memory.append((model.made, worker.memory_info().rss / MEGABYTE))


def _payloads(database_url: str) -> Sequence[int]:
    with psycopg.connect(database_url) as database:
        return [int(size) for (size,) in database.execute("SELECT size FROM loom_payloads ORDER BY created_at")]


def report(result: RunResult, long: Long, messages: int) -> str:
    """Return the figures as Markdown."""
    whole = [history for history in long.histories if model_calls(history) > _LEAST]
    prices = [bytes_after_start(history) / model_calls(history) for history in whole]
    rows = [
        [
            "outcome",
            f"{result.status}, {result.turns:,} turns, {result.tool_calls:,} tool calls, {messages:,} messages",
        ],
        ["time", f"{long.seconds:,.0f} s, {1000 * long.seconds / result.turns:.0f} ms per turn"],
        ["executions", str(len(long.histories))],
        ["longest history", f"{max(len(history.events) for history in long.histories):,} events"],
        ["history bytes per turn", f"{min(prices):,.0f} to {max(prices):,.0f}, by execution"],
        ["bytes per turn, first and last execution", f"{prices[0]:,.0f}, {prices[-1]:,.0f}"],
        ["carried states in Postgres", ", ".join(f"{size / 1e6:.1f}" for size in long.payloads) + " MB"],
        ["the same per turn", f"{sum(long.payloads) / result.turns:,.0f} bytes"],
    ]
    memory = [[f"{turn:,}", f"{size:.0f} MB"] for turn, size in long.memory]
    tables = (table(["figure", "measured"], rows), table(["turn", "worker's resident memory"], memory))
    return "\n\n".join((machine(), *tables))


_LEAST: Final = 100
"""An execution with fewer turns has no meaningful average."""


def bytes_after_start(history: WorkflowHistory) -> int:
    """Return the size of the history without its first event, which carries the state on."""
    return sum(event.ByteSize() for event in history.events[1:])


def model_calls(history: WorkflowHistory) -> int:
    """Return the number of attempts at model calls."""
    scheduled = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    return sum(
        event.event_type == scheduled
        and event.activity_task_scheduled_event_attributes.activity_type.name == "call_model"
        for event in history.events
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3000, help="number of turns")
    parser.add_argument("--messages", type=int, default=1000, help="number of messages from a person")
    parser.add_argument("--write", action="store_true", help=f"replace the figures in {DOC.name}")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    figures = asyncio.run(measure(given.turns, given.messages))
    sys.stdout.write(f"{figures}\n")
    if given.write:
        put(DOC, MARKS, figures)


if __name__ == "__main__":
    main()
