"""List and delete the data that runs have stored outside memory: artifacts, call results, and changes to clones.

Payloads are excluded, because a history with a missing payload can't be read. Rows with payloads don't name a run,
because runs share identical payloads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from loom.activities.adapters.postgres.database import Database

_WITHIN: Final = 60.0
_AT_ONCE: Final = 500

_LEFT: Final = """
SELECT run_id, sum(artifact)::int, sum(effect)::int, sum(size)::bigint FROM (
    SELECT run_id, 1 AS artifact, 0 AS effect, size, created_at FROM loom_artifacts
    UNION ALL
    SELECT run_id, 0, 1, octet_length(result::text), greatest(created_at, ended_at) FROM loom_effects
    UNION ALL
    SELECT run_id, 0, 0, octet_length(patch), created_at FROM loom_clones
) AS left_behind
GROUP BY run_id HAVING max(created_at) < %s ORDER BY run_id
"""
_DROP_ARTIFACTS: Final = "DELETE FROM loom_artifacts WHERE run_id = ANY(%s) AND created_at < %s"
_DROP_EFFECTS: Final = "DELETE FROM loom_effects WHERE run_id = ANY(%s) AND created_at < %s"
_DROP_CLONES: Final = "DELETE FROM loom_clones WHERE run_id = ANY(%s) AND created_at < %s"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLeftovers:
    """The stored data of one run."""

    run_id: str
    artifacts: int
    effects: int
    size: int
    """Approximate size in bytes."""


async def leftovers(database: Database, before: datetime) -> tuple[RunLeftovers, ...]:
    """Return the runs that haven't stored any data since the given time."""
    async with database.connection(within=_WITHIN) as connection:
        found = await (await connection.execute(_LEFT, (before,))).fetchall()
    return tuple(
        RunLeftovers(run_id=run, artifacts=some, effects=more, size=size or 0) for run, some, more, size in found
    )


async def drop(database: Database, runs: Sequence[str], before: datetime) -> None:
    """Delete the data that these runs stored before the given time. This function is idempotent."""
    for start in range(0, len(runs), _AT_ONCE):
        portion = list(runs[start : start + _AT_ONCE])
        async with database.transaction(within=_WITHIN) as connection:
            await connection.execute(_DROP_ARTIFACTS, (portion, before))
            await connection.execute(_DROP_EFFECTS, (portion, before))
            await connection.execute(_DROP_CLONES, (portion, before))
