"""The `schedule` commands, which start runs at set times."""

from dataclasses import asdict
from typing import Annotated, Final, TypeAlias, cast

import typer
from rich.table import Table

from loom.cli.arguments import (
    Agent,
    Budget,
    Git,
    Json,
    Model,
    Permissions,
    Priority,
    Push,
    Revision,
    Tenant,
    User,
    Workspace,
    named_workspace,
    new_app,
    read_fields,
    user_name,
)
from loom.cli.connection import with_client
from loom.cli.output import console, one_line, print_json
from loom.schedules import Overlap, ScheduleSummary

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Note: TypeAlias = Annotated[str, typer.Option(help="Reason, which `loom schedule list` shows.")]

OVERLAPS: Final = "skip, buffer_one, buffer_all, cancel_other, terminate_other or allow_all"

app = new_app("schedule", "Manage schedules, which start runs at the times in a cron expression.")


@app.command()
def add(
    cron: Annotated[str, typer.Argument(metavar="CRON", help='When, such as "0 8 * * 1-5" or @daily.')],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task of each run.")],
    *,
    name: Annotated[str | None, typer.Option(help="Name of the schedule; the runs' ids contain it.")] = None,
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Time zone, such as Europe/Berlin.")] = "UTC",
    overlap: Annotated[
        str, typer.Option(metavar="POLICY", help=f"What to do if the previous run is still in progress: {OVERLAPS}.")
    ] = "skip",
    paused: Annotated[bool, typer.Option("--paused", help="Start no runs until `loom schedule resume`.")] = False,
    agent: Agent = None,
    model: Model = None,
    session: Annotated[str | None, typer.Option(help="Session that all of the runs belong to.")] = None,
    workspace: Workspace = None,
    git: Git = None,
    revision: Revision = None,
    push: Push = None,
    permissions: Permissions = None,
    max_turns: Annotated[int | None, typer.Option(help="Maximum number of turns of each run.")] = None,
    budget: Budget = None,
    priority: Priority = None,
    tenant: Tenant = None,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Create a schedule that starts a run at each time in a cron expression.

    The Temporal server starts the runs, so only a worker has to be running. Exit code 2: the expression, the time zone,
    the name or the request is invalid.
    """
    request = read_fields(
        agent=agent,
        model=model,
        session_id=session,
        workspace=named_workspace(workspace, git, revision, push),
        permissions=permissions,
        max_turns=max_turns,
        budget=budget,
        priority=priority,
        tenant=tenant,
        user_id=user,
    )
    policy = cast("Overlap", overlap)  # `add` refuses others
    added = with_client(
        lambda loom: loom.schedules.add(
            cron, task, name=name, timezone=timezone, overlap=policy, paused=paused, by=user_name(), **request
        )
    )
    if as_json:
        print_json({"name": added})
    else:
        typer.echo(f"Added {added}. Start a run now with `loom schedule trigger {added}`.")


@app.command("list")
def list_schedules(as_json: Json = False) -> None:
    """List all schedules, with their next runs."""
    found = with_client(lambda loom: loom.schedules.list())
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        _print_schedules(found)


@app.command()
def pause(name: Name, note: Note = "", as_json: Json = False) -> None:
    """Pause a schedule: it starts no runs until `loom schedule resume`."""
    with_client(lambda loom: loom.schedules.pause(name, note=note))
    _done("paused", name, as_json=as_json)


@app.command()
def resume(name: Name, note: Note = "", as_json: Json = False) -> None:
    """Resume a paused schedule."""
    with_client(lambda loom: loom.schedules.resume(name, note=note))
    _done("resumed", name, as_json=as_json)


@app.command()
def trigger(name: Name, as_json: Json = False) -> None:
    """Start a run now. The overlap policy applies."""
    with_client(lambda loom: loom.schedules.trigger(name))
    _done("triggered", name, as_json=as_json)


@app.command()
def remove(name: Name, as_json: Json = False) -> None:
    """Remove a schedule. Runs that it has started continue."""
    with_client(lambda loom: loom.schedules.remove(name))
    _done("removed", name, as_json=as_json)


def _done(what: str, name: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, what: True})
    else:
        typer.echo(f"{name} is {what}.")


def _print_schedules(found: list[ScheduleSummary]) -> None:
    out = console(wide=True)
    if not found:
        out.print('no schedules; add one with `loom schedule add "0 8 * * 1-5" TASK`')
        return
    table = Table("name", "when", "next", "last run", "task", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for each in found:
        due = f"{each.next_times[0]:%Y-%m-%d %H:%M} UTC" if each.next_times else ""
        paused = f"paused: {each.note}" if each.note else "paused"
        when = each.cron if each.timezone == "UTC" else f"{each.cron} {each.timezone}"
        last = each.last_runs[-1] if each.last_runs else ""
        table.add_row(each.name, when, one_line(paused) if each.paused else due, last, one_line(each.task, 60))
    out.print(table)
