"""Convert memories to and from Postgres rows, and convert a view's conditions to SQL."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from hashlib import sha256
from math import hypot, isfinite
from typing import Any, Final, LiteralString, TypeVar

from pgvector import HalfVector, Vector
from pydantic import TypeAdapter

from loom.activities.adapters.postgres.database import Connection, storable
from loom.activities.encryption import Cipher
from loom.domain.core.errors import EncryptionKeyError
from loom.domain.core.lexemes import lexemes_of
from loom.domain.core.messages import canonical
from loom.domain.core.tasks import Task
from loom.domain.core.tenants import EVERYBODY, Owner, OwnerFilter
from loom.domain.memory.content import fingerprint
from loom.domain.memory.layers import Layer, Memory, MemoryScope, MemorySettings, View

T = TypeVar("T")

COLUMNS: Final = (
    "id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at,"
    " status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, tenant, user_id, task"
)
_NAMES: Final = tuple(COLUMNS.split(", "))
SKETCHED: Final = 384
"""Number of components in a sketch. The sketch column has this size, and so do the vectors from the offline embedder.
"""
_MOST_BYTES: Final = 400
"""Maximum size of an indexed name in bytes. A longer name is truncated and ends with its digest."""

MEMORY: Final = "memory"
"""The place for which texts of memory are encrypted."""
_LEAST_BEGINNING: Final = 4
_LONGEST_BEGINNING: Final = 8

TOLD_FORM: Final = 1
"""The current form of embedded texts. Upkeep embeds texts again that have an older form."""

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest(%s::text[]) AS session"
"""Takes the advisory locks for a transaction that writes or deletes sessions. The locks are held until the transaction
ends. Callers sort the names in Python.
"""

_MARK: Final = "\x1f"
"""Stands before the digest of the owner in a place."""

OF_OWNER: Final[LiteralString] = (
    "(%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s)"
)
"""Selects the rows of owners, with the parameters that `filter_values` returns."""

_LAYERS: Final[dict[Layer, LiteralString]] = {
    Layer.L1: "(layer = 'L1' OR (layer = 'L2' AND created_at > now() - %(recent_for)s))",
    Layer.L2: "layer = 'L2'",
    Layer.L3: "layer = 'L3'",
    Layer.L4: "(layer = 'L4' OR (layer = 'L3' AND model IS NOT NULL))",
}
_CHILDREN: Final[LiteralString] = (
    "starts_with(run_id, %(above)s::text) AND strpos(substr(run_id, length(%(above)s::text) + 1), '/') = 0"
)


def conditions(view: View, settings: MemorySettings) -> tuple[LiteralString, dict[str, Any]]:
    """Return a view's WHERE clause and the parameters of the clause."""
    parts: list[LiteralString] = ["superseded_by IS NULL", *_walls(view)]
    if view.layers:
        parts.append("(" + " OR ".join([_LAYERS[layer] for layer in Layer if layer in view.layers]) + ")")
    named: dict[LiteralString, object] = {
        "action = ANY(%(actions)s)": view.actions,
        "node = ANY(%(nodes)s)": view.nodes,
        "scope = ANY(%(scopes)s)": view.scopes,
        "run_id <> %(without_run)s": view.without_run,
        "task_id = %(task_id)s": view.task_id,
        _CHILDREN: view.children_of,
        "root_run_id = %(below)s": view.below,
        "run_id = root_run_id": view.only_roots,
        "importance >= %(min_importance)s": view.min_importance,
        "created_at >= %(since)s": view.since,
        "created_at < %(until)s": view.until,
    }
    parts += [part for part, value in named.items() if value]
    return " AND ".join(parts), _values(view, settings)


def _walls(view: View) -> Sequence[LiteralString]:
    """Return the conditions for the session and the owner. Only operators name no owner."""
    if view.owner is not None:
        return ("place = ANY(%(places)s)",)
    of_session: LiteralString = "(session_id = %(session)s OR place = '')"
    return (*([] if view.session_id is None else [of_session]), *([] if view.of == EVERYBODY else [OF_OWNER]))


def _values(view: View, settings: MemorySettings) -> dict[str, Any]:
    texts = ("without_run", "task_id", "below")
    session, owner = view.session_id, view.owner
    return {
        **filter_values(view.of),
        "session": None if session is None else key_text(session),
        "places": None if owner is None else _places(session, owner),
        "actions": [key_text(action) for action in view.actions],
        "nodes": [key_text(node) for node in view.nodes],
        "scopes": [str(scope) for scope in view.scopes],
        **{name: None if (text := getattr(view, name)) is None else key_text(text) for name in texts},
        "above": f"{key_text(view.children_of or '')}/",
        "min_importance": view.min_importance - 1e-6,  # the column stores numbers with half the precision
        "since": view.since,
        "until": view.until,
        "recent_for": settings.recent_for,
        "limit": view.limit,
    }


async def read_memory(cipher: Cipher, row: Sequence[Any]) -> Memory:
    """Convert a row with the columns in `COLUMNS` to a memory. Raises StoreUnavailable and EncryptionKeyError."""
    given = dict(zip(_NAMES, row, strict=True))
    given["content"] = await cipher.open_text(given["content"], MEMORY)
    given["task"] = await read_task(cipher, given["task"])
    given["importance"] = round(given["importance"], 6)
    return Memory(**{**given, "layer": Layer(given["layer"]), "scope": MemoryScope(given["scope"])})


async def read_memories(cipher: Cipher, rows: Iterable[Sequence[Any]]) -> list[Memory]:
    """Convert rows with the columns in `COLUMNS` to memories. Raises StoreUnavailable and EncryptionKeyError."""
    return [await read_memory(cipher, row) for row in rows]


async def read_each(rows: Iterable[Any], read: Callable[[Any], Awaitable[T]]) -> tuple[list[T], list[int]]:
    """Read each row, whose first column is its id. Return what was read, and the ids of the rows whose tenant was
    forgotten. Raises StoreUnavailable, and EncryptionKeyError if a key is missing that somebody may still have.
    """
    found: list[T] = []
    forgotten: list[int] = []
    for row in rows:
        try:
            found.append(await read(row))
        except EncryptionKeyError as error:
            if not error.is_forgotten:
                raise
            forgotten.append(row[0])
    return found, forgotten


async def read_due(
    connection: Connection,
    select: LiteralString,
    values: Mapping[str, Any],
    read: Callable[[Any], Awaitable[T]],
    *,
    delete: LiteralString,
) -> list[T]:
    """Return the rows of all tenants that are due. Rows whose tenant was forgotten are deleted, since otherwise they
    would be due for ever: for a minute, processes that still know the tenant's key may store such rows.

    Raises StoreUnavailable, and EncryptionKeyError if a key is missing that somebody may still have.
    """
    while rows := await (await connection.execute(select, values)).fetchall():
        found, forgotten = await read_each(rows, read)
        if forgotten:
            await connection.execute(delete, (forgotten,))
        if found:
            return found
    return []


async def read_task(cipher: Cipher, stored: object) -> Task | None:
    """Convert a stored task, or None if the row has none. Only an encrypted task is a text. Raises StoreUnavailable and
    EncryptionKeyError.
    """
    if isinstance(stored, str):
        stored = json.loads(await cipher.open_text(stored, MEMORY))
    return None if stored is None else _adapter(Task).validate_python(stored)


async def write_task(cipher: Cipher, task: Task, tenant: str) -> str:
    """Serialize the whole task as ASCII JSON, which can represent every Python string. An encrypted task is a text."""
    plain = _adapter(Task).dump_python(task, exclude_defaults=True, mode="json")
    written = json.dumps(plain, separators=(",", ":"))
    return json.dumps(await cipher.seal_text(written, MEMORY, tenant)) if cipher.is_on else written


async def hidden_fingerprint(cipher: Cipher, content: str) -> bytes:
    """Return the fingerprint of a content. With encryption, nobody can find the content by trying."""
    plain = fingerprint(content)
    return bytes.fromhex((await cipher.hidden_words([plain.hex()]))[0]) if cipher.is_on else plain


def key_text(text: str) -> str:
    """Convert a name of any length for an indexed column. Different names have different results."""
    kept = storable(text)
    if len(kept.encode()) <= _MOST_BYTES:
        return kept
    return kept.encode()[: _MOST_BYTES - 66].decode(errors="ignore") + "#" + digest(text).hex()


def digest(text: str) -> bytes:
    """Return a digest that identifies a text of any length."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def owner_digest(owner: Owner) -> bytes:
    """Return a digest that identifies a user of a tenant."""
    return digest(canonical({"tenant": owner.tenant, "user_id": owner.user_id}))


def owned(name: str, owner: Owner) -> str:
    """Return the place of an owner's session, or of something else with a name. Equal names of different owners have
    different places. Without an owner, the place is the name, as in earlier releases.
    """
    key = key_text(name)
    return key if owner == Owner() and _MARK not in key else key + _mark(owner)


def global_place(owner: Owner) -> str:
    """Return the place of the memories that all sessions of the owner's tenant can see."""
    return owned("", Owner(tenant=owner.tenant))


def session_digest(session: str, of: OwnerFilter) -> bytes:
    """Return a digest that identifies the sessions of a name that belong to these owners."""
    names = {name: value for name, value in asdict(of).items() if value is not None}
    return digest(_MARK + canonical({"session": session, **names}) if names else session)


@lru_cache(maxsize=1_000)
def forgotten_as(session: str, owner: Owner) -> tuple[bytes, ...]:
    """Return the digests under which an owner's session may have been forgotten."""
    named = OwnerFilter(tenant=owner.tenant), OwnerFilter(tenant=owner.tenant, user_id=owner.user_id)
    return tuple(session_digest(session, of) for of in (EVERYBODY, *named))


def filter_values(of: OwnerFilter) -> dict[str, str | None]:
    """Return the parameters of `OF_OWNER`."""
    return {name: None if value is None else storable(value) for name, value in asdict(of).items()}


def _places(session: str | None, owner: Owner) -> list[str]:
    """Return every place that an owner's run can read from."""
    return [*([] if session is None else [owned(session, owner)]), global_place(owner)]


def _mark(owner: Owner) -> str:
    return _MARK + owner_digest(owner).hex()


async def hidden_tsvector(cipher: Cipher, text: str) -> tuple[str, int]:
    """Return the same as `as_tsvector`. With encryption, it contains no words. A word is then also indexed by its
    beginnings, because a search can't compare the beginnings of hidden words.
    """
    if not cipher.is_on:
        return as_tsvector(text)
    lexemes = lexemes_of(text)
    indexed = [(number, name) for number, word in enumerate(lexemes, start=1) for name in (f"={word}", *_begins(word))]
    hidden = await cipher.hidden_words([name for _, name in indexed])
    return _vector((number, name) for (number, _), name in zip(indexed, hidden, strict=True)), len(lexemes)


def hidden_name(word: str, *, is_stem: bool) -> str:
    """Return the name under which `hidden_tsvector` hides a word, or all words that begin with a stem."""
    return f"^{word[:_LONGEST_BEGINNING]}" if is_stem else f"={word}"


def as_tsvector(text: str) -> tuple[str, int]:
    """Return a text's lexemes with their positions in Postgres syntax, and the number of lexemes."""
    lexemes = lexemes_of(text)
    return _vector(enumerate(lexemes, start=1)), len(lexemes)


def _begins(word: str) -> Iterable[str]:
    return (f"^{word[:end]}" for end in range(_LEAST_BEGINNING, min(len(word), _LONGEST_BEGINNING) + 1))


def _vector(lexemes: Iterable[tuple[int, str]]) -> str:
    places: dict[str, list[str]] = {}
    for number, lexeme in lexemes:
        places.setdefault(lexeme, []).append(str(number))
    return " ".join(f"'{lexeme}':{','.join(found[:64])}" for lexeme, found in places.items())


def as_vector(values: Sequence[float]) -> Vector:
    """Return a vector that a statement can take as a `vector` value."""
    return Vector([*map(float, values)])


def is_vector(vector: Sequence[float], dimension: int) -> bool:
    """Whether the vector has the model's length, contains only finite numbers, and isn't zero."""
    return len(vector) == dimension and all(map(isfinite, vector)) and any(vector)


def as_sketch(values: Sequence[float]) -> HalfVector:
    """Return a vector's first components as a `halfvec` value, padded with zeros. The result is scaled to length 1, so
    that the inner product approximates the cosine.
    """
    first = values[:SKETCHED]
    length = hypot(*first) or 1.0
    # Postgres rounds to single precision before it rounds to half precision, and stored sketches are rounded this way.
    single = as_vector([part / length for part in first] + [0.0] * (SKETCHED - len(first)))
    return HalfVector(single.to_list())


_adapter = cache(TypeAdapter)
