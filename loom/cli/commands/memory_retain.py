"""memory retain: deleting what runs left in the database once they have ended for long enough."""

from collections.abc import Set
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loom.cli.output import counted, print_json
from loom.domain.core.errors import UnreachableError

if TYPE_CHECKING:
    from loom.client import LoomClient

_NOT_OVER: Final = "WorkflowType IN ('AgentRun', 'CrewRun') AND (ExecutionStatus = 'Running' OR CloseTime > '{}')"


def retain(
    older_than: Annotated[int, typer.Option(min=1, metavar="DAYS", help="Days since the run has ended.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")] = False,
) -> None:
    """Delete whole outputs and results of calls of runs that ended long ago; the Temporal server says which go on.

    Memories have limits of their own ([memory_limits]). Payloads too large for a history stay: nothing says whose
    they are.
    """
    from loom.activities.ports import StoreUnavailable  # noqa: PLC0415 - `loom --help` is fast without
    from loom.cli.connection import with_client  # noqa: PLC0415

    before = datetime.now(UTC) - timedelta(days=older_than)
    try:
        done = with_client(lambda loom: retained(loom, before, dry_run=dry_run))
    except StoreUnavailable as error:
        raise UnreachableError(str(error)) from error
    if as_json:
        print_json({"before": before, "dry_run": dry_run, **done})
        return
    what = (
        f"{counted(done['artifacts'], 'artifact')} and {counted(done['effects'], 'effect')} ({done['bytes']:,} bytes)"
    )
    runs = f"{counted(done['runs'], 'run')} that ended more than {counted(older_than, 'day')} ago"
    typer.echo(
        f"{'would delete' if dry_run else 'deleted'} {what} of {runs}; {done['kept']} others go on, or ended later"
    )


async def retained(loom: "LoomClient", before: datetime, *, dry_run: bool) -> dict[str, Any]:
    """Delete, or only count, what was left before then by runs that had ended by then."""
    from loom.activities.adapters.postgres.database import Database  # noqa: PLC0415
    from loom.activities.adapters.postgres.retention import drop, leftovers  # noqa: PLC0415
    from loom.composition.load_settings import load_settings  # noqa: PLC0415

    url = load_settings().database_url
    if url is None:
        raise UnreachableError("nothing is kept without a database: start `loom up`, or set LOOM_DATABASE_URL")
    database = Database(url, max_connections=2, name="loom-retain")
    try:
        found = await leftovers(database, before)
        # Asked after that: whoever began in between has left nothing that is so old.
        going_on = await _not_over(loom, before)
        over = [left for left in found if going_on.isdisjoint(_with_those_above(left.run_id))]
        if not dry_run:
            await drop(database, [left.run_id for left in over], before)
    finally:
        await database.aclose()
    return {
        "runs": len(over),
        "artifacts": sum(left.artifacts for left in over),
        "effects": sum(left.effects for left in over),
        "bytes": sum(left.size for left in over),
        "kept": len(found) - len(over),
    }


async def _not_over(loom: "LoomClient", since: datetime) -> Set[str]:
    """Runs that go on, or have ended since then."""
    from loom.activities.adapters.postgres.database import storable  # noqa: PLC0415
    from loom.activities.adapters.temporal.runs import TemporalRuns  # noqa: PLC0415

    query = _NOT_OVER.format(since.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return {storable(execution.id) async for execution in TemporalRuns(loom.temporal).found(query)}


def _with_those_above(run_id: str) -> list[str]:
    """A sub-agent's outputs may be read for as long as its root goes on: its id begins with those above it."""
    parts = run_id.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
