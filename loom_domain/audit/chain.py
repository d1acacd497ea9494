"""The audit log as a hash chain: a row's hash covers the row's content and the hash of the previous row.

    hash of row n = SHA-256(encoding of row n, which contains the hash of row n - 1)

If encryption keys are configured, HMAC-SHA-256 with a key derived from them is used instead of SHA-256. Nobody without
the keys can then replace rows. Without keys, anyone who can write to the database can also recompute all hashes. Only a
checkpoint that is stored elsewhere reveals this. In both cases, only a checkpoint reveals that the last rows were
removed.
"""

import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, TypeAlias

from loom.domain.audit.entries import AuditEntry
from loom.domain.core.errors import BadRequest

FORMAT: Final = "loom-audit-1"
"""The first field of each encoding. A new format gets a new name."""
START: Final = bytes(32)
"""The previous hash of the first row."""
_LENGTH: Final = 4
_CHECKPOINT: Final = re.compile(r"(0|[1-9][0-9]{0,17}):([0-9a-f]{64})")

SecretOf: TypeAlias = Callable[[str], bytes | None]
"""Returns the secret of the key with this ID, or None if there is no such key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """A row of the log."""

    sequence: int
    """1 for the first row."""
    recorded_at: datetime
    entry: AuditEntry
    key_id: str
    """The ID of the encryption key that seals the row. Empty if no key does."""
    previous: bytes
    """The hash of the previous row."""
    hash: bytes

    @property
    def checkpoint(self) -> "Checkpoint":
        """The state of the log at this row."""
        return Checkpoint(sequence=self.sequence, hash=self.hash)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state of the log at one row. Stored elsewhere, it reveals whether the log up to this row has changed."""

    sequence: int = 0
    hash: bytes = START

    def __str__(self) -> str:
        return f"{self.sequence}:{self.hash.hex()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class OmittedRows:
    """Successive rows that an export leaves out. They keep the place of these rows in the chain."""

    first: int
    last: int
    previous: bytes
    """The hash of the row before the first one."""
    hash: bytes
    """The hash of the last row."""

    @classmethod
    def with_row(cls, row: AuditRow, before: "OmittedRows | None") -> "OmittedRows":
        """Return the rows that are left out `before` this row, together with this row."""
        first, previous = (row.sequence, row.previous) if before is None else (before.first, before.previous)
        return cls(first=first, last=row.sequence, previous=previous, hash=row.hash)


def read_checkpoint(text: str) -> Checkpoint:
    """Read a checkpoint such as `42:9f86d0…`. Raises BadRequest if the text isn't one."""
    if (match := _CHECKPOINT.fullmatch(text.strip())) is None:
        raise BadRequest(
            f"{text!r} is not a checkpoint: pass a number, a colon and 64 hexadecimal digits, as printed by"
            " `loom audit checkpoint`",
            field="--checkpoint",
        )
    return Checkpoint(sequence=int(match[1]), hash=bytes.fromhex(match[2]))


def next_row(
    after: Checkpoint, entry: AuditEntry, recorded_at: datetime, *, key_id: str = "", secret: bytes | None = None
) -> AuditRow:
    """Return the row that records this entry. `secret` is the secret of the key `key_id`."""
    sequence = after.sequence + 1
    text = encoded(sequence, recorded_at, entry, key_id, after.hash)
    return AuditRow(
        sequence=sequence,
        recorded_at=recorded_at,
        entry=entry,
        key_id=key_id,
        previous=after.hash,
        hash=_hash(text, secret),
    )


def encoded(sequence: int, recorded_at: datetime, entry: AuditEntry, key_id: str, previous: bytes) -> bytes:
    """Return the bytes that a row's hash covers. Each field follows its length, so different rows never have the same
    bytes.
    """
    texts = (
        FORMAT,
        str(sequence),
        utc_text(recorded_at),
        entry.key,
        utc_text(entry.at),
        entry.act,
        entry.source,
        entry.by,
        entry.identity,
        entry.tenant,
        entry.run_id,
        entry.subject,
        entry.digest,
        key_id,
        *((entry.proof,) if entry.proof else ()),  # rows without one are encoded as before there were proofs
    )
    fields = (*(text.encode("utf-8", "surrogatepass") for text in texts), previous)
    return b"".join(len(field).to_bytes(_LENGTH, "big") + field for field in fields)


def utc_text(at: datetime) -> str:
    """Return the time as a row's hash covers it."""
    offset = at.utcoffset() or timedelta()
    return (at - offset).replace(tzinfo=UTC).isoformat(timespec="microseconds")


def _hash(text: bytes, secret: bytes | None) -> bytes:
    return sha256(text).digest() if secret is None else hmac.digest(secret, text, "sha256")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A sign that somebody has tampered with the log."""

    sequence: int
    """The row that is wrong or missing."""
    problem: str


class ChainCheck:
    """Checks a log row by row, in the order of their sequence numbers.

    After a finding, the check continues and trusts the row's own hash, so that one wrong row isn't reported many times.
    """

    def __init__(self, secret_of: SecretOf, checkpoint: Checkpoint | None = None) -> None:
        self.last = Checkpoint()
        self.sealed_from: int | None = None
        """The first row whose hash depends on an encryption key."""
        self._secret_of = secret_of
        self._kept = checkpoint

    def findings(self, row: AuditRow) -> Iterator[Finding]:
        """Yield what is wrong with the next row."""
        yield from self._order(row)
        yield from self._content(row)
        kept = self._kept
        if kept is not None and row.sequence == kept.sequence and row.hash != kept.hash:
            yield Finding(sequence=row.sequence, problem="it doesn't match the checkpoint: the log was rewritten")
        self.last = row.checkpoint

    def findings_at_end(self) -> Iterator[Finding]:
        """Yield what is wrong after the last row."""
        if self._kept is not None and self._kept.sequence > self.last.sequence:
            missing = _rows(self.last.sequence + 1, self._kept.sequence)
            yield Finding(
                sequence=self.last.sequence + 1,
                problem=f"the end was cut off: the log ends before the checkpoint, so {missing} missing",
            )

    def _order(self, row: AuditRow) -> Iterator[Finding]:
        expected = self.last.sequence + 1
        if row.sequence > expected:
            missing = f"{_rows(expected, row.sequence - 1)} missing" if row.sequence > expected + 1 else "it is missing"
            yield Finding(sequence=expected, problem=missing)
        elif row.sequence < expected:
            yield Finding(sequence=row.sequence, problem=f"it comes after row {self.last.sequence}")
        elif row.previous != self.last.hash:
            before = f"row {self.last.sequence}" if self.last.sequence else "the beginning of a log"
            yield Finding(sequence=row.sequence, problem=f"it doesn't follow {before}: one of them was replaced")

    def _content(self, row: AuditRow) -> Iterator[Finding]:
        secret = self._secret_of(row.key_id) if row.key_id else None
        if row.key_id and secret is None:
            why = f"it can't be checked: LOOM_ENCRYPTION_KEYS doesn't contain the key {row.key_id}"
            yield Finding(sequence=row.sequence, problem=why)
            return
        if row.key_id and self.sealed_from is None:
            self.sealed_from = row.sequence
        if not row.key_id and self.sealed_from is not None:
            yield Finding(sequence=row.sequence, problem="it isn't sealed by a key, but rows before it are")
        text = encoded(row.sequence, row.recorded_at, row.entry, row.key_id, row.previous)
        if not hmac.compare_digest(_hash(text, secret), row.hash):
            yield Finding(sequence=row.sequence, problem="it was changed: its hash doesn't match its content")


def _rows(first: int, last: int) -> str:
    return f"row {first} is" if first == last else f"rows {first} to {last} are"
