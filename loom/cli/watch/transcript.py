"""Turn a run's events into lines of text, and keep the state that the live screen shows.

At a terminal (`live`), a turn's text is held back until the model call ends, because the text of a failed attempt is
discarded. In other output, each line is printed when it is complete.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeAlias

from rich.console import RenderableType
from rich.rule import Rule
from rich.text import Text

from loom.cli.output import counted, money, one_line, plain, seconds, tokens
from loom.cli.watch import panels
from loom.cli.watch.spending import Spending
from loom.domain.core.messages import ToolCall
from loom.domain.core.repositories import repository_line
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tool_calls import describe
from loom.domain.run.stream_events import NOT_RUN

Parameters: TypeAlias = Mapping[str, Any]
Lines: TypeAlias = Iterator[RenderableType]

TASK_LINES: Final = 3
"""Maximum number of lines to show from a sub-agent's task."""

PREVIEW: Final = {"success": 3, "warning": 6, "error": 10}
"""Maximum number of lines to show from a tool's result, by the result's status."""


@dataclass(slots=True)
class RunningTool:
    """A tool call that is running."""

    summary: str
    since: datetime
    progress: str = ""
    """The last line of the tool's output."""


class Transcript:
    """The transcript of one run, built from its events."""

    def __init__(
        self,
        run_id: str,
        *,
        live: bool,
        answer: Callable[[str], RenderableType] | None = None,
        tree: "Mapping[str, Transcript] | None" = None,
    ) -> None:
        """`answer` renders the model's text. Without it, Markdown is rendered only at a terminal. `tree` has the
        transcripts of all sub-agents, if this run is one of them.
        """
        self._run_id = run_id
        self._live = live
        self._answer = answer or (panels.answer if live else panels.plain_answer)
        self.workspace = ""
        """The run's folder on its worker's machine."""
        self.started: datetime | None = None
        self.ended: datetime | None = None
        self.turn = 0
        self.text = ""
        """The model's text that hasn't been printed yet."""
        self.said = ""
        """The model's text that was printed last."""
        self._begun = ""
        """The printed lines of a text that hasn't ended yet."""
        self.tools: dict[str, RunningTool] = {}
        self.status = "starting"
        self.spending = Spending()
        self._asked: dict[str, str] = {}
        self._denied: set[str] = set()
        self._broke = False
        self._below: dict[str, Transcript] = {}
        self._tree = self._below if tree is None else tree
        self._speaking = ""
        """The run whose lines were printed last."""
        self._by_action: Mapping[Action, Callable[[Task, Parameters], Lines]] = {
            Action.START: self._start,
            Action.WORKSPACE: self._repository,
            Action.TURN: self._new_turn,
            Action.PLANNING: self._planning,
            Action.THINKING: self._thinking,
            Action.REASONING: lambda _task, _parameters: iter(()),  # only `loom events` shows it
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
            Action.PARKED: self._parked,
            Action.UNPARKED: self._unparked,
            Action.RETRIED: self._retried,
            Action.COMPLETE: self._final,
            Action.ERROR: self._final,
        }

    @property
    def now(self) -> str:
        """What the run is doing, in a few words."""
        if self.status == "waiting_for_approval" and (asked := next(self.open_asks(), "")):
            return f"approval: {asked}"
        if self.status != "running":
            return self.status.replace("_", " ")
        match [tool.summary for tool in self.tools.values()]:
            case []:
                return "thinking" if self.turn else "starting"
            case [summary]:
                return summary
            case several:
                return counted(len(several), "tool")

    def workspace_of(self, run_id: str) -> str:
        """Return the folder of a sub-agent's run, or of this run, or an empty string if it isn't known."""
        transcript = self if run_id in ("", self._run_id) else self._tree.get(run_id)
        return transcript.workspace if transcript else ""

    def open_asks(self) -> Iterator[str]:
        """Yield the calls that wait for approval, also those of sub-agents."""
        yield from self._asked.values()
        for transcript in self._below.values():
            yield from transcript.open_asks()

    def lines_of(self, task: Task) -> Lines:
        """Return an event's lines. A sub-agent's lines are indented and tell whose they are."""
        if task.run_id != self._run_id:
            yield from self._lines_below(task)
            return
        for line in self._by_action.get(task.action, self._other)(task, task.parameters):
            self._speaking = self._run_id
            yield line

    def unprinted_text(self) -> Lines:
        """Return the model's unprinted text and mark it as printed."""
        begun, self._begun = self._begun, ""
        text, self.text = self.text, ""
        if (begun + text).strip():
            self.said = begun + text
        if text.strip():
            yield self._answer(text)

    def _lines_below(self, task: Task) -> Lines:
        """Return a sub-agent's lines. Incomplete text is held back, because sub-agents may write concurrently."""
        if (transcript := self._below.get(task.run_id)) is None:
            transcript = Transcript(task.run_id, live=True, answer=self._answer, tree=self._below)
            self._below[task.run_id] = transcript
        if task.action is Action.MODEL_CALL and task.status != "failed":
            self.spending.add(task.parameters)
        if task.action is Action.START:
            task = replace(task, parameters={**task.parameters, "task": _head(str(task.parameters.get("task", "")))})
        name = _name(task.run_id.removeprefix(f"{self._run_id}/"))
        if not self._live:
            for line in _without_rules(transcript.lines_of(task)):
                yield from panels.barred_lines(line, f"  {name} │ ")
            return
        # Where a sub-agent works is told by its name, and what it has used by the line at the bottom.
        is_used = task.action is Action.MODEL_CALL and task.status != "failed"
        told = transcript.unprinted_text() if is_used else transcript.lines_of(task)
        bars = "  " + "│ " * name.count("/")
        for line in islice(_without_rules(told), task.action is Action.START, None):
            if self._speaking != task.run_id:
                self._speaking = task.run_id
                yield Text(f"{bars}┌ {name}", style="dim")
            yield panels.Barred(line, f"{bars}│ ")

    def _execute(self, task: Task, parameters: Parameters) -> Lines:
        yield from self.unprinted_text()
        summary = one_line(f"{parameters.get('agent')}: {parameters.get('description')}")
        self.tools[str(parameters["call_id"])] = RunningTool(summary=summary, since=task.created_at)
        name = _name(str(parameters.get("child_run_id", "")).removeprefix(f"{self._run_id}/"))
        yield _line(f"⤷ {summary}  ({name})", "cyan")

    def _start(self, task: Task, parameters: Parameters) -> Lines:
        self.started = task.created_at
        self.status = "running"
        self.spending.max_turns = parameters.get("max_turns")
        facts = (f"agent {parameters.get('agent', 'default')}", f"model {parameters.get('model')}")
        shown = " · ".join(one_line(fact) for fact in facts)
        yield Text.assemble(("▶ ", "green"), (one_line(task.run_id), "bold"), (f" · {shown}", "dim"))
        self.workspace = str(parameters.get("workspace") or "")
        if self.workspace and self._tree is self._below:  # sub-agents share their root's
            yield _line(f"  {one_line(self.workspace, 400)}", "dim")
        yield Text(plain(str(parameters.get("task", ""))), style="italic")

    def _repository(self, _: Task, parameters: Parameters) -> Lines:
        yield from self.unprinted_text()
        yield _line(f"  {one_line(repository_line(parameters), 400)}", "dim")

    def _new_turn(self, _: Task, parameters: Parameters) -> Lines:
        turn, phase = int(parameters.get("to", 0)), parameters.get("phase")
        if turn == self.turn:
            return
        yield from self.unprinted_text()
        self.turn, self.status = turn, "running"
        title = f"turn {turn}" + (f" · {one_line(str(phase))}" if phase else "")
        yield Rule(title, align="left", style="dim") if self._live else Text(f"── {title} ──")

    def _planning(self, _: Task, parameters: Parameters) -> Lines:
        """Show a crew's step. The step's answer is shown when it ends."""
        if parameters.get("jobs"):
            yield _line(f"· {one_line(str(parameters.get('text')), 300)}", "cyan")

    def _thinking(self, _: Task, parameters: Parameters) -> Lines:
        self.text += str(parameters.get("content", ""))
        if not self._live and "\n" in self.text:
            whole, newline, self.text = self.text.rpartition("\n")
            self._begun += whole + newline
            yield Text(plain(whole))

    def _reset(self, _: Task, parameters: Parameters) -> Lines:
        broke, self._broke = self._broke, False
        self.text = self._begun = ""
        what = "trying the model call again" if broke else "the model call was interrupted and starts again"
        withdrawn = "" if self._live else "; ignore its earlier text in this turn"
        yield panels.remark(f"{what} (attempt {parameters.get('attempt')}){withdrawn}")

    def _model_call(self, task: Task, parameters: Parameters) -> Lines:
        if task.status == "failed":
            self._broke = True
            yield _line(
                f"✗ model: {parameters.get('error')}: {one_line(str(parameters.get('message', '')), 400)}", "red"
            )
            return
        yield from self.unprinted_text()
        self.spending.add(parameters)
        cached = parameters.get("cached_tokens") or 0
        facts = (
            str(parameters.get("model")),
            f"{tokens(parameters.get('input_tokens', 0))} in{f' ({tokens(cached)} cached)' if cached else ''}",
            f"{tokens(parameters.get('output_tokens', 0))} out",
            money(parameters.get("cost")),
            seconds(float(parameters.get("ms", 0)) / 1000),
        )
        yield _line("  " + " · ".join(facts), "dim")
        if refused := parameters.get("left_out"):
            because = one_line(str(parameters.get("because")), 300)
            yield panels.remark(f"left out, because the model's server refused it: {', '.join(refused)} ({because})")
        if ratings := parameters.get("quality_metrics"):
            yield _line(f"  {panels.rated(ratings)}", "dim")

    def _tool_call(self, task: Task, parameters: Parameters) -> Lines:
        yield from self.unprinted_text()
        self.status = "running"
        summary = one_line(str(parameters.get("summary") or parameters.get("tool")))
        attempt = parameters.get("attempt") or 1
        # An attempt that has failed has told its result. Without one, its worker was lost, or it was too slow.
        again = f" (attempt {attempt}: the one before gave no result)" if parameters["call_id"] in self.tools else ""
        self.tools[str(parameters["call_id"])] = RunningTool(summary=summary, since=task.created_at)
        if not self._live and _has_run(parameters):
            yield _line(f"→ {summary}{again if attempt > 1 else ''}")

    def _tool_progress(self, _: Task, parameters: Parameters) -> Lines:
        running = self.tools.get(str(parameters["call_id"]))
        text = plain(str(parameters.get("content", ""))).strip("\n")
        if running is None or not text.strip():
            return
        running.progress = text.rsplit("\n", 1)[-1]
        if not self._live:
            yield panels.barred(text)

    def _tool_result(self, task: Task, parameters: Parameters) -> Lines:
        running = self.tools.pop(str(parameters["call_id"]), None)
        if parameters["call_id"] in self._denied:  # the line of the decision already says why
            return
        self.spending.tool_calls_seen += _has_run(parameters)
        asked = self._asked.pop(str(parameters["call_id"]), None)
        summary = running.summary if running else asked or one_line(str(parameters.get("tool")))
        result = task.result or {}
        took = (result.get("metadata") or {}).get("execution_time") if _has_run(parameters) else None
        # No activity measures the duration of a child run.
        if running is not None and parameters.get("child_run_id"):
            took = (task.created_at - running.since).total_seconds()
        mark, style = {"success": ("✓ ", "green"), "warning": ("! ", "yellow")}.get(task.status, ("✗ ", "red"))
        yield Text.assemble((mark, style), summary, ("" if took is None else f"  {seconds(took)}", "dim"))
        is_shown = self._has_shown(task, parameters) or (not self._live and running is not None and running.progress)
        if not is_shown or task.status == "error":
            yield from panels.preview(result, PREVIEW.get(task.status, 3), boxed=self._live)

    def _has_shown(self, task: Task, parameters: Parameters) -> bool:
        """Whether the answer of a sub-agent has been printed with its other lines."""
        child = self._tree.get(str(parameters.get("child_run_id")))
        return task.status == "success" and child is not None and bool(child.said)

    def _approval_requested(self, _: Task, parameters: Parameters) -> Lines:
        """Store the call for the line that reports its decision. The display shows the pending approval."""
        yield from self.unprinted_text()
        self.status = "waiting_for_approval"
        call = ToolCall(id="", name=str(parameters.get("tool")), arguments=parameters.get("arguments") or {})
        self._asked[str(parameters.get("call_id"))] = one_line(describe(call))

    def _approval_decided(self, _: Task, parameters: Parameters) -> Lines:
        summary = self._asked.pop(str(parameters.get("call_id")), one_line(str(parameters.get("tool"))))
        if parameters.get("approved"):
            extent = " for the rest of the run" if parameters.get("scope") == "run" else ""
            edited = " with edited arguments" if parameters.get("edited") else ""
            yield _line(f"✓ approved{extent}{edited}{_by(parameters)} · {summary}", "green")
            return
        self._denied.add(str(parameters.get("call_id")))
        reason = f" · {one_line(str(parameters['reason']), 300)}" if parameters.get("reason") else ""
        yield _line(f"✗ denied{_by(parameters)} · {summary}{reason}", "red")

    def _message(self, _: Task, parameters: Parameters) -> Lines:
        who = one_line(str(parameters.get("by") or "message"), 40)
        yield Text.assemble((f"✉ {who}: ", "cyan"), plain(str(parameters.get("text", ""))))

    def _paused(self, _: Task, parameters: Parameters) -> Lines:
        self.status = "paused"
        yield _line(f"‖ paused{_by(parameters)}; `loom resume {self._run_id}` resumes it", "yellow")

    def _resumed(self, _: Task, parameters: Parameters) -> Lines:
        self.status = "running"
        yield _line(f"▶ resumed{_by(parameters)}", "green")

    def _parked(self, _: Task, parameters: Parameters) -> Lines:
        because = f"{parameters.get('error')}: {one_line(str(parameters.get('message', '')), 400)}"
        yield _line(f"‖ waiting for the {parameters.get('waiting_on')}: {because}", "yellow")
        soon = f"next try at {parameters['next_probe']}; " if parameters.get("next_probe") else ""
        until = f"fails at {parameters['until']}. " if parameters.get("until") else ""
        yield _line(f"  {soon}{until}{parameters.get('way_out', '')}", "dim")

    def _unparked(self, _: Task, parameters: Parameters) -> Lines:
        yield _line(f"▶ the run continues after {seconds(float(parameters.get('seconds') or 0))}", "green")

    def _retried(self, _: Task, parameters: Parameters) -> Lines:
        self.status, self.ended = "running", None
        by = f" by {one_line(str(parameters['by']))}" if parameters.get("by") else ""
        yield _line(f"▶ retried{by}: the run continues after it was {parameters.get('after')}", "green")

    def _final(self, task: Task, _: Parameters) -> Lines:
        yield from self.unprinted_text()
        self.tools.clear()
        self.status = task.status
        self.ended = task.created_at

    def _other(self, task: Task, parameters: Parameters) -> Lines:
        """Show any other action on one line, including actions that this release doesn't know."""
        values = ((name, one_line(str(value), 200)) for name, value in parameters.items())
        facts = ", ".join(value if name == "text" else f"{name} {value}" for name, value in values)
        yield _line(f"· {task.action.removeprefix('node.')}{f': {facts}' if facts else ''}", "dim")


def _without_rules(lines: Lines) -> Lines:
    """Leave out the rules between turns, which are for the run itself."""
    return (line for line in lines if not isinstance(line, Rule))


def _name(below: str) -> str:
    """Return the path of a sub-agent's run, without the suffixes that make run ids unique."""
    return "/".join(part.rpartition("-")[0] or part for part in below.split("/"))


def _head(task: str) -> str:
    """Return the first lines of a sub-agent's task. What follows the first paragraph is told to every sub-agent."""
    lines = task.strip().partition("\n\n")[0].split("\n")
    rest = len(lines) - TASK_LINES
    return "\n".join([*lines[:TASK_LINES], *([f"… {counted(rest, 'more line')}"] if rest > 0 else [])])


def _has_run(parameters: Parameters) -> bool:
    """Whether the call of these parameters ran, or was refused before that. A sub-agent's work has no attempt."""
    return parameters.get("attempt") != NOT_RUN


def _by(parameters: Parameters) -> str:
    return f" by {one_line(str(parameters['by']), 40)}" if parameters.get("by") else ""


def _line(text: str, style: str = "") -> Text:
    return Text(plain(text), style=style)
