"""Signed requests to runs: what a signature covers, and which signatures a run has already accepted.

A signature covers a *statement*: the kind and name of the request, the run's id, a digest of the arguments, and the
time. It therefore holds for one request to one run, and counts once. `activities/signatures.py` verifies signatures,
and `activities/start_gate.py` makes them.

Anyone who can reach the server can reset a run to an earlier point. The server then repeats the requests that the run
had received since, and the run no longer knows that it has accepted them. What a person has allowed must not hold for
what the run does instead. After a reset, a run therefore refuses approvals and rules that were signed before it.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.messages import canonical

TOLERANCE: Final = timedelta(minutes=10)
"""The maximum difference between the clock of the signer and the clock of the Temporal server."""
REMEMBERED: Final = 200
"""The number of accepted signatures that a run remembers. It accepts none that is older than all of them."""


RequestKind: TypeAlias = Literal["start", "schedule", "signal", "update"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """The content of a signed request."""

    kind: RequestKind
    name: str
    """The workflow type of a start or a schedule, or the name of the signal or update."""
    run_id: str
    """The id of the run, or of the schedule."""
    arguments: str
    """The digest of the arguments."""

    def signed_at(self, at: int) -> bytes:
        """Return the bytes to sign for the time `at`, in microseconds since the epoch."""
        content = {"kind": self.kind, "name": self.name, "run_id": self.run_id, "arguments": self.arguments, "at": at}
        return canonical({"loom-signature": 1, **content}).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A signature, as the header of a request carries it."""

    at: int
    """The time of signing, in microseconds since the epoch."""
    value: str
    """The signature in hexadecimal digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedStart:
    """The signature that came with the start of a run, and the facts that it is checked against."""

    statement: Statement
    signature: Signature
    began_at: int
    """The time at which the server started the run, in microseconds since the epoch."""
    execution: str
    """The server's id of this execution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignatureChecks:
    """Who may steer a run, recorded when the run is prepared."""

    signed: bool = False
    """Whether the start was signed with the key of the workers."""
    signed_at: int = 0
    """The time at which the start was signed, in microseconds since the epoch, or 0."""
    key: str = ""
    """The public key that requests to the run must be signed with. Empty if they need no signature."""
    widened: bool = False
    """Whether requests need a signature because only one made the run, or a run above it, possible."""
    approvals_are_named: bool = False
    """Whether a signed approval must name its call or the call's digest. False for runs from before 0.4.0."""
    used: tuple[str, ...] = ()
    """The fingerprints of the signatures that were accepted most recently, oldest first."""
    forgotten: str = ""
    """The newest fingerprint that is no longer remembered. A signature must be newer."""
    reset_at: int = 0
    """The time at which the run went on after its latest reset, in microseconds since the epoch, or 0."""
    proofs: bool = False
    """Whether the workers run calls only with proven approvals. See `core/approval_proofs.py`."""

    @property
    def is_renewed_by_resets(self) -> bool:
        """Whether a reset makes earlier approvals of this run void. False for runs from before 0.4.0."""
        return self.proofs or (bool(self.key) and self.approvals_are_named)

    @property
    def asks_renewed_at(self) -> int:
        """The time of the reset that has made all earlier approvals of this run void, or 0.

        A reset makes a run forget which signatures it has accepted since. Its asks therefore get new digests.
        """
        return self.reset_at if self.is_renewed_by_resets else 0

    @property
    def permits_since(self) -> int:
        """The earliest time at which somebody can have permitted what this run does now.

        This is the time of the latest reset, or of the signature of the start, which usually comes from the same clock
        as later requests.
        """
        return max(self.signed_at, self.reset_at) if self.is_renewed_by_resets else 0

    def refused(self, fingerprint: str) -> bool:
        """Whether a signature with this fingerprint was accepted before, or is too old to tell."""
        return fingerprint <= self.forgotten or fingerprint in self.used

    def with_used(self, fingerprint: str) -> "SignatureChecks":
        """Return the checks with one more signature remembered."""
        used = tuple(sorted((*self.used, fingerprint)))
        dropped = used[:-REMEMBERED]
        return replace(self, used=used[-REMEMBERED:], forgotten=dropped[-1] if dropped else self.forgotten)


def digest_of_arguments(arguments: list[Any]) -> str:
    """Return the digest of a request's arguments, which are plain JSON values."""
    return sha256(canonical({"arguments": arguments}).encode("utf-8", "surrogatepass")).hexdigest()


def fingerprint_of(statement: Statement, at: int) -> str:
    """Return a short text that identifies a signed request. Fingerprints sort by time."""
    return f"{at:020d}-{sha256(statement.signed_at(at)).hexdigest()[:16]}"


def microseconds(at: datetime) -> int:
    """Return a time in microseconds since the epoch."""
    return round(at.timestamp() * 1_000_000)


def is_near(at: int, other: int) -> bool:
    """Whether two times differ by at most the tolerance."""
    return abs(at - other) <= TOLERANCE / timedelta(microseconds=1)
