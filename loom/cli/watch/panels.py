"""Render parts of the screen, such as pending approvals, results and previews of tool output."""

import json
from collections.abc import Iterator
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from loom.cli.output import counted, money, one_line, plain, seconds, tokens, visible
from loom.cli.watch.form_fields import form_fields
from loom.cli.watch.pending_approvals import PendingQuestion
from loom.domain.core.messages import JsonObject
from loom.domain.core.repositories import repository_line
from loom.domain.core.requests import RunResult, RunStatus
from loom.pending_approvals import PendingApproval

LONGEST_ARGUMENT: Final = 8000
"""Maximum length of a displayed argument in characters. A red line reports the number of omitted characters."""

WIDEST: Final = 100
"""Maximum length of a displayed line of output, in characters."""

CHANGED_TEXTS: Final = ("content", "old_string", "new_string")
"""The arguments that a diff shows instead."""

_STYLES: Final = {
    RunStatus.COMPLETED: ("✓", "green"),
    RunStatus.FAILED: ("✗", "red"),
    RunStatus.ABORTED: ("■", "yellow"),
    RunStatus.LIMIT_REACHED: ("■", "yellow"),
    RunStatus.BUDGET_EXHAUSTED: ("■", "yellow"),
}


def approval(
    pending: PendingApproval, run_id: str, *, boxed: bool, hint: bool = True, change: str | None = None
) -> RenderableType:
    """Render the details that a person needs before approving a call.

    `change` is the diff of the file that the call would change, if it is known.
    """
    call_id = visible(pending.call_id)
    title = f"approve {visible(pending.tool)}? ({call_id})"
    given = "" if pending.schema is None else " --arguments '{…}'"
    answer = (
        f"answer with `loom approve {run_id} {call_id}{given}`",
        f"or with `loom deny {run_id} {call_id} --reason …`",
    )
    # In plain lines, nobody can page a diff that is cut.
    replaced = CHANGED_TEXTS if change and (boxed or not is_cut(pending, change)) else ()
    said = [(visible(name), _argument(value)) for name, value in pending.arguments.items() if name not in replaced]
    said += [(name, Text(visible(text))) for name, text in _asked(pending) if text]
    whose = f"{visible(pending.agent)}, run {visible(pending.made_by)}" if pending.made_by not in ("", run_id) else ""
    known = [
        ("sub-agent", whose),
        (
            "arguments",
            f"long texts are truncated; `loom status {visible(pending.made_by)}` shows all" if pending.is_cut else "",
        ),
        ("risk", visible(pending.risk)),
        ("why", visible(pending.reason)),
        ("rule", visible(pending.rule)),
        ("for the run", _for_run(pending)),
        ("diff", "" if change is None else "against the file on this machine"),
    ]
    if not boxed:
        rows = [Text(f"? {title}", style="yellow"), *(_indented(name, value.plain) for name, value in said)]
        rows += [Text(f"  ({name}: {value})", style="dim") for name, value in known if value]
        rows += [Text.assemble("  ", line) for line in _change_lines(change)]
        return Group(*rows, *(Text(f"  {line}", style="yellow") for line in answer if hint))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in said:
        facts.add_row(name, value)
    for name, text in known:
        if text:
            facts.add_row(Text(name, style="dim"), Text(text, style="dim"))
    below = [Text("\n".join(answer), style="yellow")] if hint else []
    body = Group(facts, *_change_lines(change), *below)
    return Panel(body, title=Text(title), title_align="left", border_style="yellow")


def approval_in_full(pending: PendingApproval, change: str | None) -> RenderableType:
    """Render a call's arguments and its change without leaving out anything, for a pager."""
    texts = {name: Text(visible(_text_of(value))) for name, value in pending.arguments.items()}
    rows = [_indented(visible(name), text.plain) for name, text in texts.items()]
    return Group(*_change_lines(change, most=None), Text(""), *rows)


def is_cut(pending: PendingApproval, change: str | None) -> bool:
    """Return whether the panel leaves out a part of the arguments or of the change."""
    if change is not None:
        from loom.cli.watch.file_changes import MOST_LINES  # noqa: PLC0415 - see `_change_lines`

        return change.count("\n") >= MOST_LINES
    return any(len(_text_of(value)) > LONGEST_ARGUMENT for value in pending.arguments.values())


def _change_lines(change: str | None, **limit: int | None) -> Iterator[Text]:
    if change is not None:
        from loom.cli.watch.file_changes import change_lines  # noqa: PLC0415 - only for calls that change a file

        yield from change_lines(change, **limit)


def _asked(pending: PendingApproval) -> Iterator[tuple[str, str]]:
    """Yield what an MCP server asks: its question, the address to open, and the fields to fill in."""
    yield "question", pending.question
    yield "open", pending.url
    for field in form_fields(pending.schema or {}):
        yield f"· {visible(field.name)}", field.described or "text"


def _for_run(pending: PendingApproval) -> str:
    if pending.question:
        return ""
    return ", ".join(visible(rule) for rule in pending.for_run) or "nothing beyond this call"


def answer(text: str) -> RenderableType:
    """Render a model's text, which is Markdown."""
    from loom.cli.watch.markdown import Answer  # noqa: PLC0415 - importing it takes 40 ms

    return Answer(text)


def plain_answer(text: str) -> Text:
    """Render a model's text as it is."""
    return Text(plain(text).rstrip())


def barred_lines(shown: RenderableType, bar: str) -> Iterator[RenderableType]:
    """Render each line of a text with a bar before it, without wrapping it or cutting it at the console's width."""
    if isinstance(shown, Barred) and isinstance(shown.shown, Text):
        shown = Text("\n").join(Text.assemble((shown.bar, "dim"), part) for part in shown.shown.split("\n"))
    if isinstance(shown, Text):
        yield from (Text.assemble((bar, "dim"), part) for part in shown.split("\n"))
    else:
        yield Barred(shown, bar)


class Barred:
    """Renders content with a bar before each line."""

    def __init__(self, shown: RenderableType, bar: str) -> None:
        self.shown = shown
        self.bar = bar

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines with their bars."""
        room = max(options.max_width - cell_len(self.bar), 1)
        for line in console.render_lines(self.shown, options.update(width=room), pad=False):
            yield Segment(self.bar, Style(dim=True))
            yield from line
            yield Segment.line()


def question_hint(question: PendingQuestion) -> Text:
    """Render the instructions for answering a question."""
    return Text(f"  {visible(question.hint)}", style="yellow")


def result(ended: RunResult, run_id: str, *, boxed: bool, took: float | None = None, shown: str = "") -> RenderableType:
    """Render a run's result and final status. An output that has just been `shown` isn't repeated."""
    mark, style = _STYLES.get(ended.status, ("■", "yellow"))
    facts = [
        counted(ended.turns, "turn"),
        counted(ended.tool_calls, "tool call"),
        f"{tokens(int(ended.usage.get('total_tokens') or 0))} tokens",
        money(ended.cost),
    ]
    if took is not None:
        facts.append(seconds(took))
    title = f"{mark} {ended.status.replace('_', ' ')} · {one_line(run_id, 400)}"
    body: list[RenderableType] = []
    is_shown = bool(shown.strip()) and ended.output.strip() == shown.strip()
    if ended.output.strip() and not is_shown:
        body.append(answer(ended.output) if boxed else Text(plain(ended.output).strip()))
    if ended.quality_metrics:
        body.append(Text(rated(ended.quality_metrics), style="dim"))
    if ended.workspace is not None:
        body.append(Text(plain(repository_line(ended.workspace)), style="dim"))
    if ended.error is not None:
        body.append(Text(f"{plain(ended.error.type)}: {plain(ended.error.message)}", style=style))
    if boxed and (body or not is_shown):
        inner = Group(*body) if body else Text("no output", style="dim")
        return Panel(inner, title=Text(title), subtitle=Text(" · ".join(facts)), title_align="left", border_style=style)
    return Group(Text(f"{title} · {' · '.join(facts)}", style=style), *body)


def rated(ratings: JsonObject) -> str:
    """Format the model's ratings of its own answer."""
    return "rated by the model itself: " + ", ".join(f"{plain(str(name))} {value}" for name, value in ratings.items())


def preview(returned: JsonObject, lines: int, *, boxed: bool, width: int = WIDEST) -> Iterator[RenderableType]:
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
    text = "\n".join(head)
    yield Barred(Text(text, style="dim"), "  │ ") if boxed else barred(text)


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


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _argument(value: Any) -> Text:
    text = _text_of(value)
    shown = Text(visible(text[:LONGEST_ARGUMENT]))
    if len(text) > LONGEST_ARGUMENT:
        rest = counted(len(text) - LONGEST_ARGUMENT, "more character")
        shown.append(f"\n… {rest} not shown: `loom status RUN --json`", "red")
    return shown
