"""Render parts of the screen, such as pending approvals, results and previews of tool output."""

import json
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loom.cli.output import counted, money, plain, seconds, tokens, visible
from loom.cli.watch.pending_approvals import PendingApproval, PendingQuestion
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult, RunStatus

LONGEST_ARGUMENT: Final = 8000
"""Maximum length of a displayed argument in characters. A red line reports the number of omitted characters."""

WIDEST: Final = 100
"""Maximum length of a displayed line of output, in characters."""

_STYLES: Final = {
    RunStatus.COMPLETED: ("✓", "green"),
    RunStatus.FAILED: ("✗", "red"),
    RunStatus.ABORTED: ("■", "yellow"),
    RunStatus.LIMIT_REACHED: ("■", "yellow"),
    RunStatus.BUDGET_EXHAUSTED: ("■", "yellow"),
}


def approval(pending: PendingApproval, run_id: str, *, boxed: bool, hint: bool = True) -> RenderableType:
    """Render the details that a person needs before approving a call."""
    call_id = visible(pending.call_id)
    title = f"approve {visible(pending.tool)}? ({call_id})"
    answer = f"answer with `loom approve {run_id} {call_id}` or `loom deny {run_id} {call_id} --reason …`"
    said = [(visible(name), _argument(value)) for name, value in pending.arguments.items()]
    whose = f"{visible(pending.agent)}, run {visible(pending.run_id)}" if pending.run_id not in ("", run_id) else ""
    known = [
        ("sub-agent", whose),
        (
            "arguments",
            f"long texts are truncated; `loom status {visible(pending.run_id)}` shows all" if pending.cut else "",
        ),
        ("risk", visible(pending.risk)),
        ("why", visible(pending.reason)),
        ("rule", visible(pending.rule)),
        ("for the run", ", ".join(visible(rule) for rule in pending.for_run) or "nothing beyond this call"),
    ]
    if not boxed:
        rows = [Text(f"? {title}", style="yellow"), *(_indented(name, value.plain) for name, value in said)]
        rows += [Text(f"  ({name}: {value})", style="dim") for name, value in known if value]
        return Group(*rows, *([Text(f"  {answer}", style="yellow")] if hint else []))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in said:
        facts.add_row(name, value)
    for name, text in known:
        if text:
            facts.add_row(Text(name, style="dim"), Text(text, style="dim"))
    body = Group(facts, Text(answer, style="yellow")) if hint else facts
    return Panel(body, title=Text(title), title_align="left", border_style="yellow")


def question_hint(question: PendingQuestion) -> Text:
    """Render the instructions for answering a question."""
    return Text(f"  {visible(question.hint)}", style="yellow")


def result(ended: RunResult, run_id: str, *, boxed: bool, took: float | None = None) -> RenderableType:
    """Render a run's result and final status."""
    mark, style = _STYLES.get(ended.status, ("■", "yellow"))
    facts = [
        counted(ended.turns, "turn"),
        counted(ended.tool_calls, "tool call"),
        f"{tokens(int(ended.usage.get('total_tokens') or 0))} tokens",
        money(ended.cost),
    ]
    if took is not None:
        facts.append(seconds(took))
    title = f"{mark} {ended.status.replace('_', ' ')} · {run_id}"
    body: list[RenderableType] = []
    if ended.output.strip():
        body.append(Text(plain(ended.output).strip()))
    if ended.quality_metrics:
        body.append(Text(rated(ended.quality_metrics), style="dim"))
    if ended.error is not None:
        body.append(Text(f"{plain(ended.error.type)}: {plain(ended.error.message)}", style=style))
    if boxed:
        inner = Group(*body) if body else Text("no output", style="dim")
        return Panel(inner, title=Text(title), subtitle=Text(" · ".join(facts)), title_align="left", border_style=style)
    return Group(Text(f"{title} · {' · '.join(facts)}", style=style), *body)


def rated(ratings: JsonObject) -> str:
    """Format the model's ratings of its own answer."""
    return "rated by the model itself: " + ", ".join(f"{plain(str(name))} {value}" for name, value in ratings.items())


def preview(returned: JsonObject, lines: int, width: int = WIDEST) -> Iterator[RenderableType]:
    """Render the first lines of a tool's result, followed by the number of omitted lines."""
    content = str(returned.get("content") or "")
    shown = plain(content).strip("\n").split("\n")
    if not any(line.strip() for line in shown):
        return
    head = [line if len(line) <= width else line[: width - 1] + "…" for line in shown[:lines]]
    cut = len(shown) - lines
    beyond = int(returned.get("length") or 0) - len(content)
    if cut > 0 or beyond > 0:
        more = counted(max(cut, 0), "more line") if beyond <= 0 else "more"
        head.append(f"… {more}")
    yield barred("\n".join(head))


def barred(text: str) -> Text:
    """Render tool output with a bar before each line, to distinguish the output from the agent's text."""
    return Text("\n".join(f"  │ {line}" for line in text.split("\n")), style="dim")


def remark(text: str) -> Text:
    """Render a message from the command itself."""
    return Text(f"— {plain(text)} —", style="yellow")


def tail(text: str, console: Console, keep: int) -> Text:
    """Return the last rows of a growing text: `keep` rows, but at least three."""
    rows = Text(text).wrap(console, console.width)
    return Text("\n").join(rows[-max(keep, 3) :])


def _indented(name: str, value: str) -> Text:
    """Render a value on the same line as its name or, if it has several lines, on separate lines."""
    if "\n" not in value:
        return Text(f"  {name}: {value}")
    return Text("\n".join([f"  {name}:", *(f"  │ {line}" for line in value.split("\n"))]))


def _argument(value: Any) -> Text:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    shown = Text(visible(text[:LONGEST_ARGUMENT]))
    if len(text) > LONGEST_ARGUMENT:
        rest = counted(len(text) - LONGEST_ARGUMENT, "more character")
        shown.append(f"\n… {rest} not shown: `loom status RUN --json`", "red")
    return shown
