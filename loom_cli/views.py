"""Runs for people: a table of them, one's status, one's conversation."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from client import LoomClient
from loom_cli import panels
from loom_cli.asks import read_ask
from loom_cli.output import console, counted, one_line, plain, seconds
from loom_cli.spending import Spending
from loom_domain.digests import canonical
from loom_domain.errors import UnreachableError
from loom_domain.messages import JsonObject, Message
from workflows.outside import RunSummary

MOST_LINES = 20
"""Lines of a tool's result that are shown."""

_STYLES = {
    "completed": "green",
    "failed": "red",
    "aborted": "yellow",
    "limit_reached": "yellow",
    "budget_exhausted": "yellow",
    "waiting_for_approval": "bold yellow",
    "paused": "yellow",
}


async def status_and_messages(loom: LoomClient, run_id: str) -> tuple[JsonObject, tuple[Message, ...] | None]:
    """A run's status and its conversation; without a worker there is only the status."""
    status = await loom.status(run_id)
    try:
        return status, await loom.transcript(run_id)
    except UnreachableError:
        return status, None


def print_runs(runs: Sequence[RunSummary]) -> None:
    """A table, or a word when there is nothing."""
    out = console(wide=True)
    if not runs:
        out.print('no runs; start one with `loom run "…"`')
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("run", "status", "started", "took", "agent", "model", "cost"):
        table.add_column(name, no_wrap=name in ("run", "status"), overflow="fold")
    now = datetime.now(UTC)
    for run in runs:
        took = ((run.closed_at or now) - run.started_at).total_seconds()
        table.add_row(
            one_line(run.run_id),
            Text(run.status, style=_STYLES.get(run.status, "")),
            f"{seconds((now - run.started_at).total_seconds())} ago",
            seconds(took),
            one_line(run.agent),
            one_line(run.model),
            "" if run.cost is None else f"${run.cost:.4f}",
        )
    out.print(table)


def print_status(status: JsonObject) -> None:
    """Status, what the run waits for, what it has spent, and the asks that can be answered."""
    out = console()
    for line in _status_lines(status, out):
        out.print(line, soft_wrap=not out.is_terminal)


def print_run(status: JsonObject, messages: Sequence[Message] | None) -> None:
    """The conversation, and the status below it, where the eye is."""
    out = console()
    for message in messages or ():
        for line in _message_lines(message):
            out.print(line, soft_wrap=not out.is_terminal)
    print_status(status)


def _status_lines(status: JsonObject, out: Console) -> list[RenderableType]:
    spending = Spending()
    spending.take(status)
    name = str(status["status"])
    run_id = one_line(str(status.get("run_id", "")))
    facts = [f"agent {status['agent']}"] if status.get("agent") else []
    facts += [f"model {status['model']}"] if status.get("model") else []
    facts += ["not answering; this is what the server knows"] if status.get("stale") else spending.facts(0)
    lines: list[RenderableType] = [
        Text.assemble((run_id, "bold"), " · ", (name.replace("_", " "), _STYLES.get(name, ""))),
        Text(" · ".join(map(one_line, facts)), style="dim"),
    ]
    if status.get("waiting_on"):
        lines.append(Text(f"waiting on {one_line(str(status['waiting_on']), 400)}"))
    lines += [Text(line, style="dim") for line in _children(status, 1)]
    if status.get("queued_messages"):
        lines.append(Text(f"messages not read yet: {status['queued_messages']}"))
    if error := status.get("error"):
        lines.append(Text(f"{plain(error['type'])}: {plain(error['message'])}", style="red"))
    lines += [panels.ask(read_ask(a), run_id, boxed=out.is_terminal) for a in status.get("pending_approvals", ())]
    return lines


def _children(status: JsonObject, depth: int) -> Iterator[str]:
    for child in status.get("children") or ():
        facts = [str(child["status"]).replace("_", " "), counted(int(child.get("turn") or 0), "turn")]
        if child.get("waiting_on"):
            facts.append(f"waiting on {child['waiting_on']}")
        about = f"{child['agent']}: {child['description']} · {' · '.join(facts)} · {child['run_id']}"
        yield f"{'  ' * depth}└ {one_line(about, 300)}"
        yield from _children(child, depth + 1)


def _message_lines(message: Message) -> list[RenderableType]:
    if message.role == "tool":
        return _tool_lines(message)
    who, style = _speaker(message)
    lines: list[RenderableType] = [Text(who, style=f"bold {style}")]
    if message.text.strip():
        lines.append(Text(plain(message.text).strip()))
    lines += [
        Text.assemble(("→ ", "yellow"), (plain(call.name), "bold"), " ", _arguments(call.malformed, call.arguments))
        for call in message.tool_calls
    ]
    return [*lines, Text()]


def _tool_lines(message: Message) -> list[RenderableType]:
    mark, style = ("✗", "red") if message.is_error else ("✓", "green")
    lines: list[RenderableType] = [Text.assemble((f"{mark} ", style), (plain(message.name or "tool"), "bold"))]
    lines += panels.preview({"content": message.text, "length": len(message.text)}, MOST_LINES, width=1000)
    return [*lines, Text()]


def _speaker(message: Message) -> tuple[str, str]:
    if message.metadata.get("kind") == "reminder":
        return "reminder from Loom", "dim"
    names: dict[str, tuple[str, str]] = {"user": ("user", "cyan"), "assistant": ("assistant", "green")}
    name, style = names.get(message.role, (message.role, ""))
    by: Any = message.metadata.get("by")
    return (f"{name} ({one_line(str(by), 40)})" if by else name), style


def _arguments(malformed: str | None, arguments: JsonObject) -> str:
    return one_line(malformed if malformed is not None else canonical(arguments), 2000)
