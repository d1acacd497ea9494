"""The `status` and `list` commands, which show a run's current status and list runs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from loom.cli.arguments import Json, RunId, new_app
from loom.cli.connection import with_client
from loom.cli.output import console, counted, one_line, plain, print_json, seconds
from loom.cli.watch import panels
from loom.cli.watch.pending_approvals import read_approval, read_questions
from loom.cli.watch.spending import Spending
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunStatus
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

app = new_app()


@app.command()
def status(run_id: RunId, as_json: Json = False) -> None:
    """Show a run's status and what it is waiting for."""
    found = with_client(lambda loom: loom.status(run_id))
    if as_json:
        print_json(found)
    else:
        print_status(found)


@app.command(name="list")
def list_runs(
    *,
    status: Annotated[str | None, typer.Option(help="Show only runs with this status.")] = None,
    session: Annotated[str | None, typer.Option(help="Show only runs in this session.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Show only this tenant's runs.")] = None,
    tree: Annotated[str | None, typer.Option(help="Show only this run and all its sub-agents.", metavar="RUN")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs.")] = 50,
    as_json: Json = False,
) -> None:
    """List runs, newest first. Sub-agents are omitted unless you use --tree."""
    if status is not None and status not in tuple(RunStatus):
        raise BadRequest(f"--status: {status!r} is not one of {', '.join(RunStatus)}", field="status")
    found = with_client(lambda loom: loom.list(status=status, session=session, below=tree, tenant=tenant, limit=limit))
    if as_json:
        print_json([asdict(run) for run in found])
    elif not found and (status or session or tree or tenant):
        typer.echo("no run matches; `loom list` without options lists the newest runs")
    else:
        _print_runs(found)


def print_status(status: JsonObject) -> None:
    """Print a run's status, what it is waiting for, its spending and its pending approvals."""
    out = console()
    for line in _status_lines(status, out):
        out.print(line, soft_wrap=not out.is_terminal)


def _print_runs(runs: Sequence[RunSummary]) -> None:
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


def _status_lines(status: JsonObject, out: Console) -> list[RenderableType]:
    spending = Spending()
    spending.take(status)
    name = str(status["status"])
    run_id = one_line(str(status.get("run_id", "")))
    facts = [f"agent {status['agent']}"] if status.get("agent") else []
    facts += [f"model {status['model']}"] if status.get("model") else []
    facts += [f"tenant {status['tenant']}"] if status.get("tenant") else []
    facts += [f"priority {status['priority']}"] if status.get("priority") else []
    facts += (
        ["the run is not responding; this status comes from the server"] if status.get("stale") else spending.facts(0)
    )
    lines: list[RenderableType] = [
        Text.assemble((run_id, "bold"), " · ", (name.replace("_", " "), _STYLES.get(name, ""))),
        Text(" · ".join(map(one_line, facts)), style="dim"),
    ]
    if status.get("waiting_on"):
        lines.append(Text(f"waiting on {one_line(str(status['waiting_on']), 400)}"))
    lines += [Text(line, style="dim") for line in _children(status, 1)]
    lines += [panels.question_hint(question) for question in read_questions(status)]
    if status.get("queued_messages"):
        lines.append(Text(f"unread messages: {status['queued_messages']}"))
    if error := status.get("error"):
        lines.append(Text(f"{plain(error['type'])}: {plain(error['message'])}", style="red"))
    lines += [
        panels.approval(read_approval(a), run_id, boxed=out.is_terminal) for a in status.get("pending_approvals", ())
    ]
    return lines


def _children(status: JsonObject, depth: int) -> Iterator[str]:
    for child in status.get("children") or ():
        facts = [str(child["status"]).replace("_", " "), counted(int(child.get("turn") or 0), "turn")]
        if child.get("waiting_on"):
            facts.append(f"waiting on {child['waiting_on']}")
        about = f"{child['agent']}: {child['description']} · {' · '.join(facts)} · {child['run_id']}"
        yield f"{'  ' * depth}└ {one_line(about, 300)}"
        yield from _children(child, depth + 1)
