"""Convert memories to and from Postgres rows, and convert a view's conditions to SQL."""

import json
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from math import hypot, isfinite
from typing import Any, Final, LiteralString

from pydantic import TypeAdapter

from loom.activities.adapters.postgres.database import storable
from loom.domain.core.lexemes import lexemes_of
from loom.domain.core.tasks import Task
from loom.domain.memory.layers import Layer, Memory, MemoryScope, MemorySettings, View

COLUMNS: Final = (
    "id, layer, content, session_id, run_id, task_id, turn, ordinal, node, action, importance, created_at,"
    " status, scope, parent_task_id, root_run_id, model, valid_to, superseded_by, task"
)
_NAMES: Final = tuple(COLUMNS.split(", "))
SKETCHED: Final = 384
"""Number of components in a sketch. The sketch column has this size, and so do the vectors from the offline embedder.
"""
_MOST_BYTES: Final = 400
"""Maximum size of an indexed name in bytes. A longer name is truncated and ends with its digest."""

TOLD_FORM: Final = 1
"""The current form of embedded texts. Upkeep embeds texts again that have an older form."""

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(session, 1280265069)) FROM unnest(%s::text[]) AS session"
"""Takes the advisory locks for a transaction that writes or deletes sessions. The locks are held until the transaction
ends. Callers sort the names in Python.
"""

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
    parts: list[LiteralString] = ["superseded_by IS NULL"]
    if view.layers:
        parts.append("(" + " OR ".join([_LAYERS[layer] for layer in Layer if layer in view.layers]) + ")")
    named: dict[LiteralString, object] = {
        "place = ANY(%(places)s)": None if view.session_id is None else (key_text(view.session_id), ""),
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


def _values(view: View, settings: MemorySettings) -> dict[str, Any]:
    texts = ("without_run", "task_id", "below")
    return {
        "places": None if view.session_id is None else [key_text(view.session_id), ""],
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


def read_memory(row: Sequence[Any]) -> Memory:
    """Convert a row with the columns in `COLUMNS` to a memory."""
    given = dict(zip(_NAMES, row, strict=True))
    given["task"] = read_task(given["task"])
    given["importance"] = round(given["importance"], 6)
    return Memory(**{**given, "layer": Layer(given["layer"]), "scope": MemoryScope(given["scope"])})


def read_task(stored: object) -> Task | None:
    """Convert a stored task, or None if the row has none."""
    return None if stored is None else _adapter(Task).validate_python(stored)


def write_task(task: Task) -> str:
    """Serialize the whole task as ASCII JSON, which can represent every Python string."""
    plain = _adapter(Task).dump_python(task, exclude_defaults=True, mode="json")
    return json.dumps(plain, separators=(",", ":"))


def key_text(text: str) -> str:
    """Convert a name of any length for an indexed column. Different names have different results."""
    kept = storable(text)
    if len(kept.encode()) <= _MOST_BYTES:
        return kept
    return kept.encode()[: _MOST_BYTES - 66].decode(errors="ignore") + "#" + digest(text).hex()


def digest(text: str) -> bytes:
    """Return a digest that identifies a text of any length."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def as_tsvector(text: str) -> tuple[str, int]:
    """Return a text's lexemes with their positions in Postgres syntax, and the number of lexemes."""
    lexemes = lexemes_of(text)
    places: dict[str, list[str]] = {}
    for number, lexeme in enumerate(lexemes, start=1):
        places.setdefault(lexeme, []).append(str(number))
    return " ".join(f"'{lexeme}':{','.join(found[:64])}" for lexeme, found in places.items()), len(lexemes)


def as_vector(values: Sequence[float]) -> str:
    """Return a vector in pgvector syntax."""
    return "[" + ",".join(map(repr, map(float, values))) + "]"


def is_vector(vector: Sequence[float], dimension: int) -> bool:
    """Whether the vector has the model's length, contains only finite numbers, and isn't zero."""
    return len(vector) == dimension and all(map(isfinite, vector)) and any(vector)


def as_sketch(values: Sequence[float]) -> str:
    """Return a vector's first components in pgvector syntax, padded with zeros. The result is scaled to length 1, so
    that the inner product approximates the cosine.
    """
    first = values[:SKETCHED]
    length = hypot(*first) or 1.0
    return as_vector([part / length for part in first] + [0.0] * (SKETCHED - len(first)))


_adapter = cache(TypeAdapter)
