"""The effect ledger in Postgres records which effects have started and finished.

Only a later attempt can take over a claim, and the first stored result is final. The tool runner handles the return
value of `reserve` as follows:

    result                           effect `once`                         effect `idempotent`
    None, no earlier attempt         run it, finish                        run it, finish
    a result                         return it                             return it
    a number up to its own attempt   unknown: finish with that report      run it again with the same key, finish
    a greater number                 this attempt is over: do nothing      this attempt is over: do nothing

After a workflow has been reset, `reserve` may return the attempt's own number, because an attempt before the reset had
the same number.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid4

import structlog

from loom.activities.adapters.postgres.database import Database, storable
from loom.activities.ports import StoreUnavailable
from loom.domain.core.messages import Part
from loom.domain.core.tool_calls import ToolResult

_log = structlog.get_logger("loom.effects")

_RESERVE: Final = """
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim)
VALUES (%(id)s, %(key)s, %(run_id)s, %(attempt)s, %(claim)s)
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim) = (
    SELECT excluded.attempt, held.attempt, excluded.claim
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
"""
_FINISH: Final = """
UPDATE loom_effects SET result = %s, ended_at = now() WHERE id = %s AND attempt = %s AND result IS NULL
"""


class PostgresEffects:
    """An `EffectLedger` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def find(self, *keys: str) -> str | None:
        """See the port."""
        ids = {_id(key): key for key in keys}
        async with self._database.connection() as connection:
            cursor = await connection.execute("SELECT id FROM loom_effects WHERE id = ANY(%s)", (list(ids),))
            held = {bytes(found) for (found,) in await cursor.fetchall()}
        return next((key for name, key in ids.items() if name in held), None)

    async def reserve(self, key: str, run_id: str, attempt: int) -> ToolResult | int | None:
        """See the port. This is a single statement, so that exactly one of several concurrent callers is the first."""
        claim = uuid4()
        try:
            held, earlier, result = await self._reserve(key, run_id, attempt, claim)
        except StoreUnavailable:
            # The claim may have been stored even though its response was lost. If so, the repeated statement recognizes
            # the claim as its own and doesn't report an earlier attempt.
            held, earlier, result = await self._reserve(key, run_id, attempt, claim)
        if result is not None:
            return read_result(result)
        return held if held > attempt else earlier

    async def finish(self, key: str, attempt: int, result: ToolResult) -> None:
        """See the port. If the attempt no longer holds the claim, or if a result is already stored, the method only
        logs a warning.
        """
        async with self._database.connection() as connection:
            cursor = await connection.execute(_FINISH, (write_result(result), _id(key), attempt))
        if cursor.rowcount == 0:
            _log.warning("effect_had_ended_or_passed_on", key=key, attempt=attempt)

    async def _reserve(
        self, key: str, run_id: str, attempt: int, claim: UUID
    ) -> tuple[int, int | None, Mapping[str, Any] | None]:
        values = {"id": _id(key), "key": storable(key), "run_id": storable(run_id), "attempt": attempt, "claim": claim}
        async with self._database.connection() as connection:
            cursor = await connection.execute(_RESERVE, values)
            row: tuple[int, int | None, Mapping[str, Any] | None] | None = await cursor.fetchone()
        assert row is not None  # noqa: S101 - an upsert without WHERE always returns its row
        return row


def write_result(result: ToolResult) -> str:
    """Serialize the result as ASCII JSON, which can represent every Python string."""
    return json.dumps(asdict(result), separators=(",", ":"), allow_nan=False)


def read_result(written: Mapping[str, Any]) -> ToolResult:
    """Parse the stored result, ignoring fields from newer versions of Loom."""
    given = _known(ToolResult, written)
    parts = tuple(Part(**_known(Part, part)) for part in given.pop("parts", ()))
    return ToolResult(**{**given, "stage_ms": tuple(given.pop("stage_ms", ())), "parts": parts})


def _known(kind: type[ToolResult | Part], written: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: written[field.name] for field in fields(kind) if field.name in written}


def _id(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
