"""The `costs` command, which adds up what runs cost."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from loom.cli.arguments import Json, new_app
from loom.cli.connection import with_client
from loom.cli.output import console, counted, money, one_line, print_json
from loom.domain.core.errors import BadRequest
from loom.domain.history.costs import CostGroup, CostKey, Costs, cost_key
from loom.periods import read_since

app = new_app()


@app.command()
def costs(
    *,
    by: Annotated[str, typer.Option(help="Add up by agent, session, tenant, user, model or day.")] = "agent",
    since: Annotated[
        str | None,
        typer.Option(metavar="SPAN|DATE", help="Leave out runs that ended earlier: 30m, 24h, 7d, 4w, or 2026-01-31."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what runs cost, by agent, session, tenant, user, model or day.

    Each run counts with its own model calls, so sub-agents aren't counted twice. The figures come from the runs that
    the server retains. Runs whose price is unknown and runs in progress are counted separately. A day is the day in
    UTC on which a run ended.
    """
    try:
        cost_key(by)
    except BadRequest as error:
        raise BadRequest(f"--{error.message}", field="by") from None
    begin = None if since is None else read_since(since, datetime.now(UTC), "--since")
    found = with_client(lambda loom: loom.costs(by, since=begin))
    if as_json:
        print_json({"by": found.by, "since": begin, **_view(found)})
    else:
        _print(found)


def _view(found: Costs) -> dict[str, object]:
    return {"groups": found.groups, "total": found.total, "is_complete": found.is_complete}


def _print(found: Costs) -> None:
    out = console(wide=True)
    if not found.groups:
        out.print("no runs in this period")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (found.by.value, "cost", "runs", "sub-agents", "unknown price", "in progress"):
        table.add_column(name, justify="left" if name == found.by.value else "right")
    for group in (*found.groups, found.total):
        table.add_row(
            one_line(group.name, 60) or ("in progress" if found.by is CostKey.DAY else f"no {found.by}"),
            _money(group),
            str(group.runs),
            *(str(number) if number else "" for number in (group.sub_agents, group.unknown, group.running)),
        )
    out.print(table)
    if not found.is_complete:
        out.print(f"only {counted(found.total.runs, 'run')} counted: use a shorter --since", style="yellow")


def _money(group: CostGroup) -> str:
    is_known = group.runs > group.unknown + group.running
    return money(group.cost) if is_known or group.cost else "unknown" if group.unknown else ""
