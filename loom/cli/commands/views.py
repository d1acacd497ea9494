"""Runs for people: a table of them, and one's status."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from loom.cli.output import console, counted, one_line, plain, seconds
from loom.cli.watch import panels
from loom.cli.watch.pending_approvals import read_ask, read_questions
from loom.cli.watch.spending import Spending
from loom.domain.core.messages import JsonObject
from loom.visibility import RunSummary

_STYLES = {
    "completed": "green",
    "failed": "red",
    "aborted": "yellow",
    "limit_reached": "yellow",
    "budget_exhausted": "yellow",
    "waiting_for_approval": "bold yellow",
    "paused": "yellow",
}


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
    lines += [panels.how_to(question) for question in read_questions(status)]
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
