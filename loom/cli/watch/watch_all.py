"""Watch all runs at once, with one line per run: what the server lists, and what the runs' live streams tell."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.ports import StreamUnavailable
from loom.cli.output import age, console, counted, money, one_line, tokens
from loom.cli.run_list import LONGEST_ID, MARKS, STYLES, WIDE
from loom.cli.watch import panels
from loom.cli.watch.keyboard import Keyboard, at_terminal
from loom.cli.watch.transcript import Transcript
from loom.client import LoomClient
from loom.domain.core.errors import RunNotFoundError, UnreachableError
from loom.visibility import RunSummary
from loom.watching import closing

FRAMES: Final = 4
"""Frames per second. The server is asked for its list once a second."""
LISTED: Final = 100
"""Maximum number of runs that are followed, the newest ones."""
AROUND: Final = 4
"""Lines of the terminal that aren't rows of runs."""


async def watch_all(loom: LoomClient) -> None:
    """Show all runs until the caller is canceled. Runs that end meanwhile stay."""
    out = console()
    board = RunBoard(loom, out)
    try:
        if out.is_terminal:
            taken = Keyboard(sys.stdin.fileno()).opened() if at_terminal() else nullcontext()
            with taken, Live(console=out, auto_refresh=False, get_renderable=board.render) as live:
                while True:
                    await board.refresh()
                    for _ in range(FRAMES):
                        live.refresh()
                        await asyncio.sleep(1 / FRAMES)
        while True:
            await board.refresh()
            for line in board.changes():
                out.print(line, soft_wrap=True)
            await asyncio.sleep(1)
    finally:
        await board.close()


class RunBoard:
    """The runs in progress, and those that have ended since the board was made."""

    def __init__(self, loom: LoomClient, out: Console) -> None:
        self._loom = loom
        self._out = out
        self._begun = datetime.now(UTC)
        self._runs: list[RunSummary] = []
        self._transcripts: dict[str, Transcript] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._unreadable: set[str] = set()
        self._started: dict[str, datetime | None] = {}  # by run; the list has only the newest execution's start
        self._told: dict[str, str] = {}
        self._trouble = ""

    async def refresh(self) -> None:
        """Ask the server for the runs, and follow the streams of those that are in progress."""
        try:
            listed = await self._loom.list(limit=LISTED)
        except UnreachableError as error:
            self._trouble = error.message
            return
        self._trouble = ""
        self._runs = [run for run in listed if run.closed_at is None or run.closed_at >= self._begun]
        for run in self._runs:
            if run.run_id not in self._reading:
                self._reading[run.run_id] = asyncio.create_task(self._read(run.run_id))

    async def close(self) -> None:
        """Stop following the streams."""
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    def render(self) -> RenderableType:
        """Render one line per run."""
        room = max(self._out.height - AROUND, 1)
        rows: list[RenderableType] = [self._table(self._runs[:room])]
        if not self._runs:
            rows = [Text("no run is in progress", style="dim")]
        if len(self._runs) > room:
            rows.append(Text(f"… and {len(self._runs) - room} more", style="dim"))
        if self._trouble:
            rows.append(panels.remark(self._trouble))
        waiting = sum(run.status.startswith("waiting") for run in self._runs)
        facts = [counted(len(self._runs), "run"), *([f"{waiting} waiting: `loom inbox` answers"] if waiting else [])]
        return Group(*rows, Text(" · ".join([*facts, "Ctrl-C leaves"]), style="dim"))

    def changes(self) -> Iterator[Text]:
        """Yield a line for each run whose status has changed since the last call."""
        if self._trouble:
            yield panels.remark(self._trouble)
        for run in reversed(self._runs):
            line = f"{one_line(run.run_id, 400)} {run.status} {one_line(run.agent)}"
            if self._told.get(run.run_id) != line:
                self._told[run.run_id] = line
                yield Text(line)

    def _table(self, runs: list[RunSummary]) -> Table:
        now = datetime.now(UTC)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
        table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=LONGEST_ID)
        if is_wide := self._out.width >= WIDE:
            table.add_column("agent", no_wrap=True, overflow="ellipsis", max_width=16)
        for name in ("age", "turn", "tokens", "cost"):
            table.add_column(name, no_wrap=True, justify="right")
        table.add_column("now", no_wrap=True, overflow="ellipsis", ratio=1)
        for run in runs:
            transcript = self._transcripts.get(run.run_id)
            spent = transcript.spending if transcript else None
            style = STYLES.get(run.status, "")
            table.add_row(
                Text.assemble((f"{MARKS.get(run.status, '?')} ", style), one_line(run.run_id, 400)),
                *([one_line(run.agent)] if is_wide else []),
                self._age(run, now),
                str(transcript.turn) if transcript else "",
                tokens(spent.tokens_seen) if spent else "",
                money(spent.cost_seen) if spent and spent.cost_seen is not None else "",
                Text(one_line(self._now(run, transcript), 400), style=style),
            )
        return table

    async def _read(self, run_id: str) -> None:
        """Follow a run's stream to its end. If the stream is unavailable, the next refresh tries again. Events that
        can't be read don't hide other runs.
        """
        transcript = Transcript(run_id, live=True, answer=panels.plain_answer)
        try:
            runs = TemporalRuns(self._loom.temporal)
            self._started[run_id] = await runs.started_at(await runs.described(run_id))
            async with closing(self._loom.events(run_id, follow=True)) as events:
                async for event in events:
                    self._transcripts[run_id] = transcript
                    for _ in transcript.lines_of(event.task):
                        pass  # only what the transcript keeps is shown
        except (StreamUnavailable, UnreachableError, RunNotFoundError):
            self._transcripts.pop(run_id, None)
            self._reading.pop(run_id, None)
        except Exception:  # noqa: BLE001 - a worker of any release may have written the events, with any key
            self._transcripts.pop(run_id, None)
            self._unreadable.add(run_id)

    def _age(self, run: RunSummary, now: datetime) -> str:
        started = self._started.get(run.run_id)
        return "" if started is None else age(((run.closed_at or now) - started).total_seconds())

    def _now(self, run: RunSummary, transcript: Transcript | None) -> str:
        """Return what a run is doing. The stream says it in more detail, and the server knows of questions."""
        told = "" if transcript is None or transcript.ended else transcript.now
        is_open = run.status == "running" or (run.status == "waiting_for_approval" and told.startswith("approval"))
        said = told if told and is_open else run.status.replace("_", " ")
        return f"{said} · its events can't be read" if run.run_id in self._unreadable else said
