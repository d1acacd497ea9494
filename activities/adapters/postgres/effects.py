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

A claim comes with a lease, which its worker renews while the call is in progress. Postgres' clock decides when a lease
ends, so the workers' clocks don't matter. A lease that ends too far in the future was granted before that clock was set
back, and doesn't count. After Postgres restarts, workers have the duration of one lease to renew theirs.

A worker that stands still renews nothing, but its connections stay open. Those of a dead worker are closed. A claim
therefore contains the session that has last renewed its lease. As long as this session is there, the attempt counts as
alive for `STANDSTILL` more.
"""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, fields
from datetime import timedelta
from functools import cache
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar
from uuid import UUID, uuid4

import structlog
from pydantic import TypeAdapter, ValidationError

from loom.activities.adapters.postgres.database import Database, storable
from loom.activities.ports import Claim, StoreUnavailable
from loom.domain.core.errors import NodeFailedError
from loom.domain.core.messages import Part
from loom.domain.core.tool_calls import ToolResult
from loom.domain.run.activity_payloads import ModelReply

_log = structlog.get_logger("loom.effects")

T = TypeVar("T")

LEASE: Final = timedelta(seconds=2.5)
"""How long an attempt counts as alive after its claim, or after the last renewal."""
STANDSTILL: Final = timedelta(seconds=10)
"""How much longer it counts as alive if its worker is still connected."""

_FAILED: Final = "failed"
"""The field of a stored answer that says why the node has failed."""

_RESERVE: Final = """
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, alive_until, session)
VALUES (%(id)s, %(key)s, %(run_id)s, %(attempt)s, %(claim)s, now() + %(lease)s, pg_backend_pid())
ON CONFLICT (id) DO UPDATE SET (attempt, earlier, claim, alive_until, session) = (
    SELECT excluded.attempt, held.attempt, excluded.claim, excluded.alive_until, excluded.session
    WHERE held.result IS NULL AND held.attempt <= excluded.attempt AND held.claim <> excluded.claim
    UNION ALL
    SELECT held.attempt, held.earlier, held.claim, held.alive_until, held.session
    WHERE held.result IS NOT NULL OR held.attempt > excluded.attempt OR held.claim = excluded.claim
)
RETURNING attempt, earlier, result
"""
_FINISH: Final = """
UPDATE loom_effects SET result = %s, ended_at = now() WHERE id = %s AND attempt = %s AND result IS NULL
"""
_STORE: Final = """
WITH replaced AS (DELETE FROM loom_effects WHERE id = %(replaced)s AND result IS NOT NULL)
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, result, ended_at)
SELECT %(id)s, %(key)s, %(run_id)s, %(attempt)s, %(claim)s, %(result)s, now()
FROM set_config('synchronous_commit', 'off', true) -- the row must survive the worker, not Postgres
ON CONFLICT (id) DO UPDATE SET result = excluded.result, ended_at = now()
WHERE held.attempt <= excluded.attempt
RETURNING id
"""
_RENEW: Final = """
INSERT INTO loom_effects AS held (id, key, run_id, attempt, claim, alive_until, session)
SELECT id, key, run_id, attempt, claim, now() + %(lease)s, pg_backend_pid()
FROM unnest(%(ids)s::bytea[], %(keys)s::text[], %(run_ids)s::text[], %(attempts)s::int[], %(claims)s::uuid[])
    AS renewed (id, key, run_id, attempt, claim)
CROSS JOIN set_config('synchronous_commit', 'off', true) -- a lease must not wait for the disk, nor survive a crash
ORDER BY id
ON CONFLICT (id) DO UPDATE
SET attempt = excluded.attempt, alive_until = excluded.alive_until, session = excluded.session
WHERE held.attempt <= excluded.attempt
RETURNING id
"""
_RELEASE: Final = "UPDATE loom_effects SET alive_until = NULL WHERE id = %s AND attempt = %s"
_FORGET: Final = "DELETE FROM loom_effects WHERE id = %s AND result IS NOT NULL"
_IS_ALIVE: Final = """
SELECT EXISTS (
    SELECT FROM loom_effects
    WHERE id = ANY(%(ids)s) AND result IS NULL AND alive_until IS NOT NULL AND (
        clock_timestamp() BETWEEN alive_until - %(lease)s AND alive_until -- a renewal may be later than now()
        OR now() < pg_postmaster_start_time() + %(lease)s
        OR now() BETWEEN alive_until AND alive_until + %(standstill)s
            AND EXISTS (SELECT FROM pg_stat_activity WHERE pid = session)
    )
)
"""
_STOOD_STILL: Final = """
SELECT extract(epoch FROM now() - alive_until + %(lease)s)::float8 FROM loom_effects
WHERE id = %(id)s AND result IS NULL AND alive_until < now()
    AND EXISTS (SELECT FROM pg_stat_activity WHERE pid = session)
"""


class PostgresLedger(Generic[T]):
    """A `Ledger` that uses Loom's own database."""

    def __init__(
        self, database: Database, write: Callable[[T], str], read: Callable[[Mapping[str, Any]], T | None]
    ) -> None:
        """Use the database, which the caller must close. `write` and `read` convert a result to JSON and back. If
        `read` returns None, the call counts as unfinished.
        """
        self._database = database
        self._write = write
        self._read = read

    async def find(self, *keys: str) -> str | None:
        """See the port."""
        ids = {_id(key): key for key in keys}
        async with self._database.connection() as connection:
            cursor = await connection.execute("SELECT id FROM loom_effects WHERE id = ANY(%s)", (list(ids),))
            held = {bytes(found) for (found,) in await cursor.fetchall()}
        return next((key for name, key in ids.items() if name in held), None)

    async def reserve(self, key: str, run_id: str, attempt: int) -> T | int | None:
        """See the port. This is a single statement, so that exactly one of several concurrent callers is the first."""
        claim = uuid4()
        try:
            held, earlier, result = await self._reserve(key, run_id, attempt, claim)
        except StoreUnavailable:
            # The claim may have been stored even though its response was lost. If so, the repeated statement recognizes
            # the claim as its own and doesn't report an earlier attempt.
            held, earlier, result = await self._reserve(key, run_id, attempt, claim)
        if result is not None and (known := self._read(await self._opened(key, result))) is not None:
            return known
        return held if held > attempt else earlier

    async def finish(self, key: str, attempt: int, result: T) -> None:
        """See the port. If the attempt no longer holds the claim, or if a result is already stored, the method only
        logs a warning.
        """
        written = await self._sealed(key, result)
        async with self._database.connection() as connection:
            cursor = await connection.execute(_FINISH, (written, _id(key), attempt))
        if cursor.rowcount == 0:
            _log.warning("effect_had_ended_or_passed_on", key=key, attempt=attempt)

    async def store(self, claim: Claim, result: T, *, replaces: str | None = None) -> bool:
        """See the port. This is a single statement."""
        values = {
            "id": _id(claim.key),
            "key": storable(claim.key),
            "run_id": storable(claim.run_id),
            "attempt": claim.attempt,
            "claim": uuid4(),
            "result": await self._sealed(claim.key, result),
            "replaced": None if replaces is None else _id(replaces),
        }
        async with self._database.connection() as connection:
            return (await connection.execute(_STORE, values)).rowcount > 0

    async def renew(self, claims: Sequence[Claim]) -> Set[str]:
        """See the port. This is a single statement for all calls of a worker."""
        ids = {_id(claim.key): claim.key for claim in claims}
        values = {
            "ids": list(ids),
            "keys": [storable(claim.key) for claim in claims],
            "run_ids": [storable(claim.run_id) for claim in claims],
            "attempts": [claim.attempt for claim in claims],
            "claims": [uuid4() for _ in claims],
            "lease": LEASE,
        }
        async with self._database.connection() as connection:
            cursor = await connection.execute(_RENEW, values)
            return {ids[bytes(held)] for (held,) in await cursor.fetchall()}

    async def release(self, claim: Claim) -> None:
        """See the port."""
        async with self._database.connection() as connection:
            await connection.execute(_RELEASE, (_id(claim.key), claim.attempt))

    async def forget(self, key: str) -> None:
        """See the port."""
        async with self._database.connection() as connection:
            await connection.execute(_FORGET, (_id(key),))

    async def is_alive(self, *keys: str) -> bool:
        """See the port."""
        async with self._database.connection() as connection:
            values = {"ids": [_id(key) for key in keys], "lease": LEASE, "standstill": STANDSTILL}
            cursor = await connection.execute(_IS_ALIVE, values)
            (alive,) = await cursor.fetchone() or (False,)
        return bool(alive)

    async def stood_still(self, key: str) -> float:
        """See the port."""
        async with self._database.connection() as connection:
            cursor = await connection.execute(_STOOD_STILL, {"id": _id(key), "lease": LEASE})
            (seconds,) = await cursor.fetchone() or (0.0,)
        return float(seconds)

    async def _sealed(self, key: str, result: T) -> str:
        """Return a result as JSON, which is encrypted if the database's content is."""
        written, cipher = self._write(result), self._database.cipher
        return (
            json.dumps(await cipher.seal_text(written, _place(key), cipher.tenant_of(key))) if cipher.is_on else written
        )

    async def _opened(self, key: str, result: Mapping[str, Any] | str) -> Mapping[str, Any]:
        """Return a stored result as JSON. Only an encrypted result is a text."""
        if not isinstance(result, str):
            return result
        opened: Mapping[str, Any] = json.loads(await self._database.cipher.open_text(result, _place(key)))
        return opened

    async def _reserve(
        self, key: str, run_id: str, attempt: int, claim: UUID
    ) -> tuple[int, int | None, Mapping[str, Any] | str | None]:
        values = {
            "id": _id(key),
            "key": storable(key),
            "run_id": storable(run_id),
            "attempt": attempt,
            "claim": claim,
            "lease": LEASE,
        }
        async with self._database.connection() as connection:
            cursor = await connection.execute(_RESERVE, values)
            row: tuple[int, int | None, Mapping[str, Any] | str | None] | None = await cursor.fetchone()
        assert row is not None  # noqa: S101 - an upsert without WHERE always returns its row
        return row


class PostgresEffects(PostgresLedger[ToolResult]):
    """An `EffectLedger` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        super().__init__(database, write_result, read_result)


class PostgresReplies(PostgresLedger[ModelReply]):
    """A `Ledger` of model calls that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        super().__init__(database, write_reply, read_reply)


class PostgresAnswers(PostgresLedger[ModelReply | NodeFailedError]):
    """A `Ledger` of the calls of nodes that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        super().__init__(database, write_answer, read_answer)


def write_result(result: ToolResult) -> str:
    """Serialize the result as ASCII JSON, which can represent every Python string."""
    return json.dumps(asdict(result), separators=(",", ":"), allow_nan=False)


def read_result(written: Mapping[str, Any]) -> ToolResult:
    """Parse the stored result, ignoring fields from newer versions of Loom."""
    given = _known(ToolResult, written)
    parts = tuple(Part(**_known(Part, part)) for part in given.pop("parts", ()))
    return ToolResult(**{**given, "stage_ms": tuple(given.pop("stage_ms", ())), "parts": parts})


def write_reply(reply: ModelReply) -> str:
    """Serialize the reply as ASCII JSON without default values."""
    plain = _replies().dump_python(reply, mode="json", exclude_defaults=True)
    return json.dumps(plain, separators=(",", ":"))


def read_reply(written: Mapping[str, Any]) -> ModelReply | None:
    """Parse the stored reply. Returns None if another version of Loom wrote it and this one can't read it."""
    try:
        return _replies().validate_python(written)
    except ValidationError:
        return None


def write_answer(answer: ModelReply | NodeFailedError) -> str:
    """Serialize a node's answer or failure. Earlier versions of Loom can't read a failure, so that for them, the call
    hasn't finished.
    """
    if isinstance(answer, NodeFailedError):
        return json.dumps({"message": {_FAILED: answer.message}})
    return write_reply(answer)


def read_answer(written: Mapping[str, Any]) -> ModelReply | NodeFailedError | None:
    """Parse the stored answer or failure. Returns None if this version of Loom can't read it."""
    message = written.get("message")
    if isinstance(message, dict) and isinstance(told := message.get(_FAILED), str):
        return NodeFailedError(told)
    return read_reply(written)


@cache
def _replies() -> TypeAdapter[ModelReply]:
    return TypeAdapter(ModelReply)


def _known(kind: type[ToolResult | Part], written: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: written[field.name] for field in fields(kind) if field.name in written}


def _place(key: str) -> str:
    return f"the result of {key}"


def _id(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()
