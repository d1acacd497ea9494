"""Read a value that Loom keeps out of history as any program can: from Postgres, without Loom or Temporal."""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import psycopg


def read_reference(reference: Mapping[str, Any], database_url: str) -> Any:
    """Return the value behind the JSON of an `ExternalStorageReference`."""
    name = bytes.fromhex(reference["claimData"]["id"])
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT data FROM loom_payloads WHERE id = %s", (name,)).fetchone()
    if row is None or sha256(row[0]).digest() != name:
        raise ValueError(f"the payload {name.hex()} is missing or was changed")
    fields = list(_fields(row[0]))
    metadata = dict(_entry(content) for number, content in fields if number == 1)
    if metadata["encoding"] != b"json/plain":
        raise ValueError(f"decode the payload first: its encoding is {metadata['encoding']!r}")
    return json.loads(b"".join(content for number, content in fields if number == 2))


def _entry(content: bytes) -> tuple[str, bytes]:
    entry = dict(_fields(content))
    return entry[1].decode(), entry.get(2, b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each field. In this message, each field has a length."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        length, at = _number(message, at)
        yield tag >> 3, message[at : at + length]
        at += length


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the number in base 128, lowest digits first, and where the next one begins."""
    value = shift = 0
    while message[at] >= 128:
        value |= (message[at] - 128) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
