"""What a run's events say to people: `Story.tell` turns each into lines that stay, and keeps what is going on now.

At a terminal (`live`) the text of a turn is held back until its model call has ended, since an attempt that breaks off
takes its text with it. Elsewhere lines are told as they are complete.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from loom.cli.output import counted, money, one_line, plain, seconds, tokens
from loom.cli.watch import panels
from loom.cli.watch.spending import Spending
from loom.domain.core.messages import ToolCall
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tool_calls import describe

Said: TypeAlias = Mapping[str, Any]
Lines: TypeAlias = Iterator[RenderableType]

TASK_LINES: Final = 3
"""Lines of a sub-agent's task that are shown."""

PREVIEW: Final = {"success": 3, "warning": 6, "error": 10}
"""Lines of a tool's result that are shown, by its status."""


@dataclass(slots=True)
class RunningTool:
    """A tool call that has begun."""

    summary: str
    since: datetime
    progress: str = ""
    """The last line that it has said."""


class Story:
    """One run as its events tell it."""

    def __init__(self, run_id: str, *, live: bool) -> None:
        self._run_id = run_id
        self._live = live
        self.started: datetime | None = None
        self.ended: datetime | None = None
        self.turn = 0
        self.text = ""
        """What the model has said since the last line that was told."""
        self.tools: dict[str, RunningTool] = {}
        self.status = "starting"
        self.spending = Spending()
        self._asked: dict[str, str] = {}
        self._broke = False
        self._below: dict[str, Story] = {}
        self._tellers: Mapping[Action, Callable[[Task, Said], Lines]] = {
            Action.START: self._start,
            Action.TURN: self._new_turn,
            Action.PLANNING: self._planning,
            Action.THINKING: self._thinking,
            Action.SEGMENT_RESET: self._reset,
            Action.MODEL_CALL: self._model_call,
            Action.TOOL_CALL: self._tool_call,
            Action.TOOL_PROGRESS: self._tool_progress,
            Action.TOOL_RESULT: self._tool_result,
            Action.EXECUTE: self._execute,
            Action.APPROVAL_REQUESTED: self._approval_requested,
            Action.APPROVAL_DECIDED: self._approval_decided,
            Action.MESSAGE: self._message,
            Action.PAUSED: self._paused,
            Action.RESUMED: self._resumed,
            Action.COMPLETE: self._final,
            Action.ERROR: self._final,
        }

    def tell(self, task: Task) -> Lines:
        """The lines that stay of one event; those of sub-agents stand further in, under the names of their runs."""
        if task.run_id != self._run_id:
            return self._tell_below(task)
        return self._tellers.get(task.action, self._other)(task, task.parameters)

    def rest(self) -> Lines:
        """The text that has not been told yet."""
        text, self.text = self.text, ""
        if text.strip():
            yield Text(plain(text).rstrip())

    def _tell_below(self, task: Task) -> Lines:
        """One line after the other as they come; text of several sub-agents at once only when it is whole."""
        story = self._below.setdefault(task.run_id, Story(task.run_id, live=True))
        if task.action is Action.MODEL_CALL and task.status != "failed":
            self.spending.add(task.parameters)
        name = _name(task.run_id.removeprefix(f"{self._run_id}/"))
        if task.action is Action.START:
            task = replace(task, parameters={**task.parameters, "task": _head(str(task.parameters.get("task", "")))})
        for line in story.tell(task):
            if isinstance(line, Text):
                yield from (Text.assemble((f"  {name} │ ", "dim"), part) for part in line.split("\n"))
            elif not isinstance(line, Rule):
                yield Padding(line, (0, 0, 0, 4))

    def _execute(self, task: Task, said: Said) -> Lines:
        yield from self.rest()
        summary = one_line(f"{said.get('agent')}: {said.get('description')}")
        self.tools[str(said["call_id"])] = RunningTool(summary=summary, since=task.created_at)
        name = _name(str(said.get("child_run_id", "")).removeprefix(f"{self._run_id}/"))
        yield _line(f"⤷ {summary}  ({name})", "cyan")

    def _start(self, task: Task, said: Said) -> Lines:
        self.started = task.created_at
        self.status = "running"
        self.spending.max_turns = said.get("max_turns")
        facts = (f"agent {said.get('agent', 'default')}", f"model {said.get('model')}", str(said.get("workspace")))
        shown = " · ".join(one_line(fact) for fact in facts)
        yield Text.assemble(("▶ ", "green"), (one_line(task.run_id), "bold"), (f" · {shown}", "dim"))
        yield Text(plain(str(said.get("task", ""))), style="italic")

    def _new_turn(self, _: Task, said: Said) -> Lines:
        turn, phase = int(said.get("to", 0)), said.get("phase")
        if turn == self.turn:
            return
        yield from self.rest()
        self.turn, self.status = turn, "running"
        title = f"turn {turn}" + (f" · {one_line(str(phase))}" if phase else "")
        yield Rule(title, align="left", style="dim") if self._live else Text(f"── {title} ──")

    def _planning(self, _: Task, said: Said) -> Lines:
        """A crew's step; its answer is told at the end."""
        if said.get("jobs"):
            yield _line(f"· {one_line(str(said.get('text')), 300)}", "cyan")

    def _thinking(self, _: Task, said: Said) -> Lines:
        self.text += str(said.get("content", ""))
        if not self._live and "\n" in self.text:
            whole, _newline, self.text = self.text.rpartition("\n")
            yield Text(plain(whole))

    def _reset(self, _: Task, said: Said) -> Lines:
        broke, self._broke = self._broke, False
        self.text = ""
        what = "trying the model call again" if broke else "the model call was interrupted, starting again"
        withdrawn = "" if self._live else "; what it had said in this turn does not count"
        yield panels.remark(f"{what} (attempt {said.get('attempt')}){withdrawn}")

    def _model_call(self, task: Task, said: Said) -> Lines:
        if task.status == "failed":
            self._broke = True
            yield _line(f"✗ model: {said.get('error')}: {one_line(str(said.get('message', '')), 400)}", "red")
            return
        yield from self.rest()
        self.spending.add(said)
        cached = said.get("cached_tokens") or 0
        facts = (
            str(said.get("model")),
            f"{tokens(said.get('input_tokens', 0))} in{f' ({tokens(cached)} cached)' if cached else ''}",
            f"{tokens(said.get('output_tokens', 0))} out",
            money(said.get("cost")),
            seconds(float(said.get("ms", 0)) / 1000),
        )
        yield _line("  " + " · ".join(facts), "dim")
        if ratings := said.get("quality_metrics"):
            yield _line(f"  {panels.rated(ratings)}", "dim")

    def _tool_call(self, task: Task, said: Said) -> Lines:
        yield from self.rest()
        self.status = "running"
        summary = one_line(str(said.get("summary") or said.get("tool")))
        self.tools[str(said["call_id"])] = RunningTool(summary=summary, since=task.created_at)
        if not self._live:
            yield _line(f"→ {summary}")

    def _tool_progress(self, _: Task, said: Said) -> Lines:
        running = self.tools.get(str(said["call_id"]))
        text = plain(str(said.get("content", ""))).strip("\n")
        if running is None or not text.strip():
            return
        running.progress = text.rsplit("\n", 1)[-1]
        if not self._live:
            yield panels.barred(text)

    def _tool_result(self, task: Task, said: Said) -> Lines:
        running = self.tools.pop(str(said["call_id"]), None)
        self.spending.tool_calls_seen += 1
        summary = running.summary if running else one_line(str(said.get("tool")))
        result = task.result or {}
        took = (result.get("metadata") or {}).get("execution_time")
        if running is not None and said.get("child_run_id"):  # no activity measured it: a run did the work
            took = (task.created_at - running.since).total_seconds()
        mark, style = {"success": ("✓ ", "green"), "warning": ("! ", "yellow")}.get(task.status, ("✗ ", "red"))
        yield Text.assemble((mark, style), summary, ("" if took is None else f"  {seconds(took)}", "dim"))
        told = not self._live and running is not None and running.progress
        if not told or task.status == "error":
            yield from panels.preview(result, PREVIEW.get(task.status, 3))

    def _approval_requested(self, _: Task, said: Said) -> Lines:
        """The ask itself is shown as long as it is open; here only what the answer will be about."""
        yield from self.rest()
        self.status = "waiting_for_approval"
        call = ToolCall(id="", name=str(said.get("tool")), arguments=said.get("arguments") or {})
        self._asked[str(said.get("call_id"))] = one_line(describe(call))

    def _approval_decided(self, _: Task, said: Said) -> Lines:
        summary = self._asked.pop(str(said.get("call_id")), one_line(str(said.get("tool"))))
        if said.get("approved"):
            extent = " for the rest of the run" if said.get("scope") == "run" else ""
            edited = " with other arguments" if said.get("edited") else ""
            yield _line(f"✓ approved{extent}{edited}{_by(said)} · {summary}", "green")
            return
        reason = f" · {one_line(str(said['reason']), 300)}" if said.get("reason") else ""
        yield _line(f"✗ denied{_by(said)} · {summary}{reason}", "red")

    def _message(self, _: Task, said: Said) -> Lines:
        who = one_line(str(said.get("by") or "message"), 40)
        yield Text.assemble((f"✉ {who}: ", "cyan"), plain(str(said.get("text", ""))))

    def _paused(self, _: Task, said: Said) -> Lines:
        self.status = "paused"
        yield _line(f"‖ paused{_by(said)}; `loom resume {self._run_id}` lets the run go on", "yellow")

    def _resumed(self, _: Task, said: Said) -> Lines:
        self.status = "running"
        yield _line(f"▶ resumed{_by(said)}", "green")

    def _final(self, task: Task, _: Said) -> Lines:
        yield from self.rest()
        self.tools.clear()
        self.status = task.status
        self.ended = task.created_at

    def _other(self, task: Task, said: Said) -> Lines:
        """Whatever else there is, in one line: so new actions are shown, too."""
        told = ((name, one_line(str(value), 200)) for name, value in said.items())
        facts = ", ".join(value if name == "text" else f"{name} {value}" for name, value in told)
        yield _line(f"· {task.action.removeprefix('node.')}{f': {facts}' if facts else ''}", "dim")


def _name(below: str) -> str:
    """The runs between, without what makes their ids unique."""
    return "/".join(part.rpartition("-")[0] or part for part in below.split("/"))


def _head(task: str) -> str:
    """The beginning of a sub-agent's task: the rest is what others have brought, and the same for every one."""
    lines = task.strip().split("\n")
    rest = len(lines) - TASK_LINES
    return task if rest <= 0 else "\n".join([*lines[:TASK_LINES], f"… {counted(rest, 'more line')}"])


def _by(said: Said) -> str:
    return f" by {one_line(str(said['by']), 40)}" if said.get("by") else ""


def _line(text: str, style: str = "") -> Text:
    return Text(plain(text), style=style)
