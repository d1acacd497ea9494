"""Short names for values: the same for equal ones, whoever computes them."""

import json
from hashlib import blake2b

from loom.domain.core.messages import JsonObject, ToolCall


def canonical(arguments: JsonObject) -> str:
    """One spelling for equal arguments: sorted keys, no spaces (RFC 8785 without its number rules)."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def call_digest(run_id: str, call: ToolCall) -> str:
    """12 hex digits that name this call, of this run, with these arguments."""
    return short_digest("\0".join((run_id, call.id, call.name, canonical(call.arguments))))


def short_digest(text: str) -> str:
    """12 hex digits that name this text (BLAKE2b-48)."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def arguments_digest(arguments: JsonObject) -> str:
    """12 hex digits that name these arguments."""
    return short_digest(canonical(arguments))
