"""The `audit` commands, which show and check who did what, when, and to which run."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer
from rich.table import Table

from loom.activities.adapters.postgres.audit import AuditFilter, PostgresAuditLog, Verification
from loom.activities.ports import StoreUnavailable
from loom.cli.arguments import Json, new_app
from loom.cli.logs import silence
from loom.cli.output import console, counted, one_line, print_json, print_notice
from loom.composition.audit_log import opened_log
from loom.composition.encryption import opened_database
from loom.composition.load_settings import load_settings
from loom.domain.audit.chain import AuditRow, read_checkpoint
from loom.domain.core.errors import UnreachableError
from loom.exit_codes import FAILED
from loom.periods import read_since

T = TypeVar("T")

MOST_SHOWN: Final = 20
"""The maximum number of findings that are printed without `--json`."""

Tenant: TypeAlias = Annotated[str | None, typer.Option(help="Only acts that concern this tenant.")]
Run: TypeAlias = Annotated[str | None, typer.Option(metavar="RUN", help="Only this run and its sub-agents.")]
By: TypeAlias = Annotated[str | None, typer.Option(metavar="NAME", help="Only acts by this person or program.")]
Since: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SPAN|DATE", help="Only acts since this time: 30m, 24h, 7d, 4w, or 2026-01-31.")
]

app = new_app("audit", "Show and check who did what, when, and to which run.")


@app.command("list")
def list_(
    *,
    tenant: Tenant = None,
    run: Run = None,
    by: By = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of acts.")] = 50,
    as_json: Json = False,
) -> None:
    """List acts, newest first: starts, decisions, steering, policy changes, and refused requests."""
    chosen = _filter(tenant, run, by, since)
    rows = _with_log(lambda log: log.newest(chosen, limit))
    if as_json:
        print_json([view(row) for row in rows])
        return
    if not rows:
        typer.echo("no acts are recorded" if chosen == AuditFilter() else "no recorded acts match these options")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("row", "time", "act", "by", "run", "what", "tenant", "source"):
        table.add_column(column)
    for row in rows:
        entry = row.entry
        by_whom = entry.by or f"({entry.identity})"
        texts = (entry.act, by_whom, entry.run_id, entry.subject, entry.tenant, entry.source)
        table.add_row(
            str(row.sequence), f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}", *(one_line(text, 40) for text in texts)
        )
    console(wide=True).print(table)


@app.command()
def verify(
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="N:HASH", help="Also check that the log up to this checkpoint hasn't changed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify the whole log. Exit with code 1 if rows were changed, removed, added or moved.

    Only a checkpoint that you have stored elsewhere reveals that the last rows were removed. Without encryption keys,
    it is also the only way to detect that somebody has rewritten the whole log.
    """
    kept = read_checkpoint(checkpoint) if checkpoint is not None else None
    found = _with_log(lambda log: log.verify(kept))
    if as_json:
        print_json(_verification(found))
    else:
        _tell(found)
    if found.findings:
        raise typer.Exit(FAILED)


@app.command()
def checkpoint(as_json: Json = False) -> None:
    """Print a checkpoint: the number of rows, and the hash of the last row. Store it where nobody can change it."""
    now = _with_log(lambda log: log.checkpoint())
    if as_json:
        print_json({"checkpoint": str(now), "rows": now.sequence})
    else:
        typer.echo(str(now))


@app.command()
def export(*, tenant: Tenant = None, run: Run = None, by: By = None, since: Since = None) -> None:
    """Print acts as JSON lines, oldest first. The first line is a checkpoint of the whole log."""
    chosen = _filter(tenant, run, by, since)

    async def work(log: PostgresAuditLog) -> None:
        print_json({"checkpoint": str(await log.checkpoint())})
        async for row in log.oldest(chosen):
            print_json(view(row))

    _with_log(work)


def view(row: AuditRow) -> dict[str, Any]:
    """Return a row as JSON, with everything that the row's hash depends on."""
    entry = row.entry
    return {
        "row": row.sequence,
        "recorded_at": row.recorded_at,
        "at": entry.at,
        "act": entry.act,
        "source": entry.source,
        "by": entry.by,
        "identity": entry.identity,
        "tenant": entry.tenant,
        "run_id": entry.run_id,
        "subject": entry.subject,
        "digest": entry.digest,
        "key": entry.key,
        "key_id": row.key_id,
        "previous": row.previous.hex(),
        "hash": row.hash.hex(),
    }


def _verification(found: Verification) -> dict[str, Any]:
    return {
        "ok": not found.findings,
        "rows": found.checkpoint.sequence,
        "checkpoint": str(found.checkpoint),
        "sealed_from": found.sealed_from,
        "findings": [{"row": each.sequence, "problem": each.problem} for each in found.findings],
    }


def _tell(found: Verification) -> None:
    for each in found.findings[:MOST_SHOWN]:
        typer.echo(f"row {each.sequence}: {each.problem}")
    if len(found.findings) > MOST_SHOWN:
        print_notice(f"and {len(found.findings) - MOST_SHOWN} more; --json prints all")
    rows = counted(found.checkpoint.sequence, "row")
    if found.findings:
        print_notice(f"the audit log isn't intact: {counted(len(found.findings), 'finding')}")
    elif found.sealed_from is None:
        typer.echo(f"{rows}, intact, but not sealed by encryption keys: compare with a checkpoint that you have stored")
    else:
        typer.echo(f"{rows}, intact; sealed by encryption keys from row {found.sealed_from}")


def _filter(tenant: str | None, run: str | None, by: str | None, since: str | None) -> AuditFilter:
    begin = None if since is None else read_since(since, datetime.now(UTC), "--since")
    return AuditFilter(tenant=tenant, run_id=run, by=by, since=begin)


def _with_log(work: Callable[[PostgresAuditLog], Awaitable[T]]) -> T:
    settings = load_settings()
    if not settings.database_url:
        raise UnreachableError("the audit log is in Postgres: start `loom up`, or set LOOM_DATABASE_URL")
    silence()

    async def connected() -> T:
        async with opened_database(settings, max_connections=1, name="loom-audit") as database:
            return await work(opened_log(settings, database))

    try:
        return asyncio.run(connected())
    except StoreUnavailable as error:
        raise UnreachableError(str(error)) from error
