"""Show a run as text: the model's text, the tools' results, and the approval requests."""

from typing import Final

from rich.console import Console
from rich.text import Text

from loom.cli.output import counted, one_line, plain, seconds
from loom.cli.watch.pending_approvals import PendingQuestion
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Action, Task
from loom.domain.run.stream_events import NOT_RUN
from loom.pending_approvals import PendingApproval, read_approval

WIDTH: Final = 110
SILENT: Final = frozenset({Action.START, Action.REASONING, Action.TOOL_PROGRESS})
"""Actions that aren't shown."""


class Teller:
    """A Display that prints a run and keeps its events."""

    def __init__(self, out: Console) -> None:
        """Print to `out`, which uses colors only in a terminal."""
        self.events: list[Task] = []
        self._out = out
        self._said = ""
        self._summaries: dict[str, str] = {}
        self._finished: list[Text] = []

    def line(self, text: str, style: str = "") -> None:
        """Print a line."""
        self._out.print(Text(plain(text), style=style), soft_wrap=True)

    def event(self, offset: int, task: Task) -> None:
        """Show one event. The results of a step are shown together when the step has ended."""
        self.events.append(task)
        said = task.parameters
        match task.action:
            case Action.THINKING:
                self._said += str(said.get("content", ""))
            case Action.TOOL_CALL:
                self._summaries[str(said["call_id"])] = one_line(str(said["summary"]), WIDTH)
            case Action.TOOL_RESULT:
                self._finished.append(self._result(task))
            case Action.APPROVAL_REQUESTED:
                self._show_ask(read_approval(said))
            case Action.APPROVAL_DECIDED | Action.SEGMENT_RESET:
                self._remark(task)
            case Action.MODEL_CALL:
                self._show_turn(task)
            case _ if task.action not in SILENT:
                self._show_results()

    def stream_lost(self, status: JsonObject, why: str) -> None:
        """Report that the live stream is unavailable."""
        self.line(f"  live stream is unavailable ({one_line(why)}); the run is {status['status']}", "yellow")

    def status(self, status: JsonObject) -> None:
        """Show nothing."""

    def approval_opened(self, ask: PendingApproval) -> None:
        """Show nothing. The event shows the request in its place, because the status may be ahead of the stream."""

    def question_opened(self, question: PendingQuestion) -> None:
        """Show nothing, because this agent doesn't ask questions."""

    def has_shown(self, ask: PendingApproval) -> bool:
        """Whether this approval request has been shown."""
        asked = (task.parameters for task in self.events if task.action is Action.APPROVAL_REQUESTED)
        return any(said.get("digest") == ask.digest for said in asked)

    def say(self, text: str) -> None:
        """Show a message from the follower of the run."""
        self.line(f"  {text}", "yellow")

    def _show_ask(self, ask: PendingApproval) -> None:
        """Show a short form of the request. `loom status` shows the full request."""
        self.line(f"  ? {ask.tool} waits for a person", "bold yellow")
        facts = [(name, _short(value)) for name, value in ask.arguments.items()]
        facts += [("why", ask.reason), ("digest", ask.digest)]
        for name, value in facts:
            self.line(f"      {name:<8} {value}", "yellow")

    def _remark(self, task: Task) -> None:
        if task.action is Action.SEGMENT_RESET:
            self._said = ""
            self.line("  the step was interrupted and starts again", "yellow")
            return
        said = task.parameters
        self.line(f"  ✓ {'approved' if said.get('approved') else 'denied'} by {said.get('by')}", "green")

    def _show_turn(self, task: Task) -> None:
        text, self._said = self._said, ""
        shown = one_line(text, 2 * WIDTH)
        if task.status == "failed":
            shown = f"{task.parameters.get('error')}: {task.parameters.get('message')}"
        self.line(f"turn {task.parameters.get('turn')} · {shown}", "bold")

    def _show_results(self) -> None:
        finished, self._finished = self._finished, []
        if len(finished) > 1:
            self.line(f"  {counted(len(finished), 'call')} side by side", "cyan")
        for row in finished:
            self._out.print(row, soft_wrap=True)

    def _result(self, task: Task) -> Text:
        has_run = task.parameters["attempt"] != NOT_RUN
        took = ((task.result or {}).get("metadata") or {}).get("execution_time") if has_run else None
        mark = ("✓ ", "green") if task.status == "success" else ("✗ ", "red")
        summary = self._summaries.get(str(task.parameters["call_id"]), str(task.parameters["tool"]))
        return Text.assemble("  ", mark, summary, ("" if took is None else f"  {seconds(took)}", "dim"))


def _short(value: object) -> str:
    text = str(value)
    more = f" … ({counted(text.count(chr(10)), 'line')}, {len(text)} characters)" if "\n" in text else ""
    return one_line(text.split("\n", 1)[0], WIDTH) + more
