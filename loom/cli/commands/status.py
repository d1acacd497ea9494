"""The `status` and `list` commands, which show a run's current status and list runs."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.cli.arguments import Json, NoPager, RunId, new_app
from loom.cli.connection import server_named, web_ui, with_client
from loom.cli.output import age, console, counted, fault_told, one_line, plain, print_json, seconds
from loom.cli.pager import paged
from loom.cli.run_list import STYLES, run_table, run_tree
from loom.cli.run_names import run_named, with_run
from loom.cli.watch import panels
from loom.cli.watch.pending_approvals import read_questions
from loom.cli.watch.spending import Spending
from loom.client import LoomClient
from loom.composition.load_settings import load_settings
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.repositories import repository_line
from loom.domain.core.requests import RunStatus
from loom.pending_approvals import read_approval
from loom.run_overviews import RunOverview, RunOverviews
from loom.visibility import RunSummary, task_summary

app = new_app()


@app.command()
def status(run_id: RunId, as_json: Json = False) -> None:
    """Show a run's status and what it is waiting for."""
    found = with_run(run_id, _status)
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
    tree: Annotated[
        str | None, typer.Option(help="Show this run and all its sub-agents as a tree.", metavar="RUN")
    ] = None,
    waiting: Annotated[
        str | None,
        typer.Option(
            help="Show only runs that wait for provider, operator, approval, input, resume, tenant or repair."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs.")] = 50,
    no_pager: NoPager = False,
    as_json: Json = False,
) -> None:
    """List runs, newest first. Sub-agents are omitted unless you use --tree.

    `@1`, `@2` and so on name the runs in other commands. With --waiting provider or operator, sub-agents that wait are
    listed, too.
    """
    if status is not None and status not in tuple(RunStatus):
        raise BadRequest(f"--status: {status!r} is not one of {', '.join(RunStatus)}", field="status")
    chosen: dict[str, Any] = {"status": status, "session": session, "tenant": tenant, "below": tree, "waiting": waiting}
    if as_json:
        print_json([asdict(run) for run in with_client(lambda loom: _listed(loom, chosen, limit))])
        return
    found = with_client(lambda loom: _overviews(loom, chosen, limit))
    if not found and any(chosen.values()):
        typer.echo("no run matches; `loom list` without options lists the newest runs")
    elif not found:
        typer.echo(f'no runs at {server_named(load_settings())}; start one with `loom run "…"`')
    else:
        _print_runs(found, as_tree=tree is not None, in_pager=not no_pager)


def print_status(status: JsonObject) -> None:
    """Print a run's status, what it is waiting for, its spending and its pending approvals."""
    out = console()
    for line in _status_lines(status, out):
        out.print(line, soft_wrap=not out.is_terminal)


async def _status(loom: LoomClient, run_id: str) -> JsonObject:
    """Return the run's status with its task and its times, which the server knows."""
    runs = TemporalRuns(loom.temporal)
    found, described = await asyncio.gather(loom.status(run_id), runs.described(run_id))
    times = {"started_at": await runs.started_at(described), "closed_at": described.close_time}
    return {**found, "task": await task_summary(described), **times}


async def _listed(loom: LoomClient, chosen: Mapping[str, Any], limit: int) -> Sequence[RunSummary]:
    below = chosen["below"]
    return await loom.list(**{**chosen, "below": await run_named(loom, below) if below else None}, limit=limit)


async def _overviews(loom: LoomClient, chosen: Mapping[str, Any], limit: int) -> Sequence[RunOverview]:
    return await RunOverviews(loom.temporal).of(await _listed(loom, chosen, limit))


def _print_runs(found: Sequence[RunOverview], *, as_tree: bool, in_pager: bool) -> None:
    out, now = console(wide=True), datetime.now(UTC)
    with paged(out, wanted=in_pager):
        out.print(run_tree(found, now) if as_tree else run_table(found, now, out.width))


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
    facts += _times(status)
    lines: list[RenderableType] = [
        Text.assemble((run_id, "bold"), " · ", (name.replace("_", " "), STYLES.get(name, ""))),
        *([Text(one_line(str(status["task"]), 400))] if status.get("task") else []),
        Text(" · ".join(map(one_line, facts)), style="dim"),
    ]
    if ui := web_ui(str(status.get("run_id", ""))):
        lines.append(Text(ui, style="dim"))
    if repository := status.get("workspace"):
        lines.append(Text(one_line(repository_line(repository), 400), style="dim"))
    if status.get("waiting_on"):
        lines.append(Text(f"waiting on {one_line(str(status['waiting_on']), 400)}"))
    if fault := status.get("fault"):
        lines.append(Text(fault_told(run_id, fault), style="red"))
    if parked := status.get("parked"):
        lines += [Text(line, style="yellow") for line in _parked(parked)]
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


def _times(status: JsonObject) -> list[str]:
    if not (started := status.get("started_at")):
        return []
    if closed := status.get("closed_at"):
        return [f"took {seconds((closed - started).total_seconds())}"]
    return [f"started {age((datetime.now(UTC) - started).total_seconds())} ago"]


def _parked(parked: JsonObject) -> Iterator[str]:
    """Describe why a parked run waits, for how long, and how it goes on."""
    error = parked["error"]
    yield f"{plain(error['type'])}: {plain(error['message'])}"
    tried = f", {counted(parked['probes'], 'try', 'tries')} since" if parked["probes"] else ""
    soon = f"; next try at {parked['next_probe']}" if parked["next_probe"] else ""
    yield f"waiting since {parked['since']}{tried}{soon}; fails at {parked['until']}"
    yield plain(parked["way_out"])


def _children(status: JsonObject, depth: int) -> Iterator[str]:
    for child in status.get("children") or ():
        facts = [str(child["status"]).replace("_", " "), counted(int(child.get("turn") or 0), "turn")]
        if child.get("waiting_on"):
            facts.append(f"waiting on {child['waiting_on']}")
        about = f"{child['agent']}: {child['description']} · {' · '.join(facts)} · {child['run_id']}"
        yield f"{'  ' * depth}└ {one_line(about, 300)}"
        yield from _children(child, depth + 1)
