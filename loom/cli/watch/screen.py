"""Display a watched run for people. Past events scroll up, and a live area at the bottom shows current activity."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from loom.cli.output import one_line, plain, seconds
from loom.cli.watch import panels
from loom.cli.watch.pending_approvals import PendingQuestion
from loom.cli.watch.transcript import RunningTool, Transcript
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Task
from loom.pending_approvals import PendingApproval

FRAMES: Final = 10
"""Frames per second of the live area."""
TOOLS_SHOWN: Final = 8
SHORTEST_NOW: Final = 12
"""Columns for what the run is doing, if the rest of the line leaves less."""
DETACH: Final = " · Ctrl-C detaches"
LIVE_TEXT: Final = 8000
"""Maximum length of unfinished text in the live area, in characters. Complete text is printed in full."""


def live_area(console: Console, render: Callable[[], RenderableType]) -> Live:
    """Start a live area below what is printed. A stopped one can't start again: it would erase the lines above it."""
    live = Live(console=console, auto_refresh=False, transient=True, get_renderable=render)
    live.start()
    return live


class Screen:
    """Shows one run on a console; implements `Display`."""

    def __init__(
        self,
        console: Console,
        run_id: str,
        *,
        live: bool,
        answerable: bool = False,
        replies: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create a screen for a run.

        `live` draws a live area. `answerable` means that people answer approvals on this screen, and `replies` means
        that they answer questions on it.
        """
        self._console = console
        self._run_id = run_id
        self._is_live = live
        self._answerable = answerable
        self._replies = replies
        self._now = now
        self._transcript = Transcript(run_id, live=live)
        self._live: Live | None = None
        self._spinner = Spinner("dots")
        self._prompt: RenderableType | None = None
        self._is_away = False
        self._last_status = ""

    @asynccontextmanager
    async def moving(self) -> AsyncIterator[None]:
        """Draw the live area while the body of the `with` block runs."""
        if not self._is_live:
            yield
            return
        self._live = live_area(self._console, self.render)
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            live, self._live = self._live, None
            live.stop()
            self._print_all(self._transcript.unprinted_text())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop drawing while another program uses the terminal."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            if live is not None:
                self._live = live_area(self._console, self.render)

    def render(self) -> RenderableType:
        """Render the live area."""
        rows: list[RenderableType] = []
        if text := self._transcript.text:
            rows.append(panels.tail(plain(text[-LIVE_TEXT:]), self._console, keep=self._console.height - 12))
        tools = list(self._transcript.tools.values())
        rows += [self._tool_row(tool) for tool in tools[:TOOLS_SHOWN]]
        if len(tools) > TOOLS_SHOWN:
            rows.append(Text(f"  … and {len(tools) - TOOLS_SHOWN} more", style="dim"))
        if self._prompt is not None:
            rows.append(self._prompt)
        rows.append(self._bar())
        return Group(*rows)

    def event(self, offset: int, task: Task) -> None:
        """Show one event."""
        if self._is_away:
            self._is_away = False
            self.say("the live stream is available again")
        self._print_all(self._transcript.lines_of(task))

    def stream_lost(self, status: JsonObject, why: str) -> None:
        """Show the status while the live stream is unavailable."""
        if not self._is_away:
            self._is_away = True
            self.say(f"the live stream is unavailable ({one_line(why)}); showing the status")
        self.status(status)
        facts = [str(status["status"]).replace("_", " ")]
        if status.get("turn") is not None:
            facts.insert(0, f"turn {status['turn']}")
        if status.get("waiting_on"):
            facts.append(f"waiting on {one_line(str(status['waiting_on']))}")
        if (line := " · ".join(facts)) != self._last_status:
            self._last_status = line
            self._print(Text(line))

    def status(self, status: JsonObject) -> None:
        """Update the screen from the run's status."""
        parked = status.get("parked")
        self._transcript.status = f"waiting for the {parked['waiting_on']}" if parked else str(status["status"])
        self._transcript.spending.take(status)

    def approval_opened(self, ask: PendingApproval) -> None:
        """Show a pending approval and how to answer it, unless the prompt already shows both."""
        if not self._answerable:
            self._print(panels.approval(ask, self._run_id, boxed=self._is_live, change=self._change(ask)))

    def question_opened(self, question: PendingQuestion) -> None:
        """Show a question and how to answer it, unless a prompt for the answer is shown."""
        if not self._replies:
            self.say(question.notice)

    def prompt(self, shown: RenderableType | None) -> None:
        """Show a prompt at the end of the live area, or remove it if `shown` is None."""
        self._prompt = shown
        if self._live is not None:
            self._live.refresh()

    def show(self, shown: RenderableType) -> None:
        """Print content before the live area."""
        self._print(shown)

    def say(self, text: str) -> None:
        """Print a message from the command itself."""
        self._print(panels.remark(text))

    def ended(self, result: RunResult) -> None:
        """Show the run's result and final status."""
        self._print_all(self._transcript.unprinted_text())
        took, shown = self._elapsed(), self._transcript.said
        self._print(panels.result(result, self._run_id, boxed=self._is_live, took=took, shown=shown))

    def _change(self, ask: PendingApproval) -> str | None:
        """Return what the call would change in a file, if that is known here."""
        workspace = self._transcript.workspace_of(ask.made_by)
        if ask.is_cut or not workspace:
            return None
        from loom.file_changes import change_of  # noqa: PLC0415 - only for calls that wait

        return change_of(ask.tool, ask.arguments, workspace)

    def _print_all(self, lines: Iterator[RenderableType]) -> None:
        for line in lines:
            self._print(line)

    def _print(self, shown: RenderableType) -> None:
        self._console.print(shown, soft_wrap=not self._is_live)

    def _tool_row(self, tool: RunningTool) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        row.add_column(width=1)
        row.add_column(no_wrap=True, overflow="ellipsis")
        span = seconds(max((self._now() - tool.since).total_seconds(), 0))
        last = f"  {one_line(tool.progress, 200)}" if tool.progress else ""
        row.add_row(self._spinner, Text.assemble(tool.summary, (f"  {span}", "dim"), (last, "dim")))
        return row

    def _bar(self) -> Text:
        """Return one line: what the run is doing, and what it has used. What doesn't fit is left out."""
        facts = self._transcript.spending.facts(self._transcript.turn)[:3]
        if (elapsed := self._elapsed()) is not None:
            facts.append(seconds(elapsed))
        rest = "".join(f" · {fact}" for fact in facts)
        room = max(self._console.width - cell_len(rest), SHORTEST_NOW)
        now = Text(plain(self._transcript.now), style="bold")
        now.truncate(room, overflow="ellipsis")
        line = Text.assemble(now, (rest, "dim"), no_wrap=True, overflow="ellipsis")
        return line.append(DETACH, "dim") if line.cell_len + len(DETACH) <= self._console.width else line

    def _elapsed(self) -> float | None:
        started = self._transcript.started
        end = self._transcript.ended or self._now()
        return None if started is None else max((end - started).total_seconds(), 0)

    async def _tick(self) -> None:
        while True:
            if self._live is not None:
                self._live.refresh()
            await asyncio.sleep(1 / FRAMES)
