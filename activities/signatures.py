"""Sign requests to runs and verify them, with Ed25519. Also decide which starts a worker accepts.

The signature travels in a Temporal header, so the payloads of the public contract don't change.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload

from loom.domain.core.errors import BadRequest
from loom.domain.core.signatures import (
    TOLERANCE,
    Signature,
    SignedStart,
    Speakers,
    Statement,
    is_near,
    mark_of,
    microseconds,
)

HEADER: Final = "loom-signature"
"""The name of the header."""
STARTS_REMEMBERED: Final = 10_000
"""The number of accepted starts that a worker remembers, so that a recorded start doesn't count twice."""

_SIGNATURE: Final = TypeAdapter(Signature)


class SigningKey:
    """A private key."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw().hex()
        """The public key in hexadecimal digits."""

    def header(self, statement: Statement, at: datetime) -> Mapping[str, Payload]:
        """Return the header that signs this statement."""
        moment = microseconds(at)
        signature = Signature(at=moment, value=self._private.sign(statement.signed_at(moment)).hex())
        return {HEADER: Payload(metadata={"encoding": b"json/plain"}, data=_SIGNATURE.dump_json(signature))}


def signature_in(headers: Mapping[str, Payload]) -> Signature | None:
    """Return the signature in the headers of a request, or None if there is none that can be read."""
    if (payload := headers.get(HEADER)) is None:
        return None
    try:
        return _SIGNATURE.validate_json(payload.data)
    except ValidationError:
        return None


def is_signed(statement: Statement, signature: Signature, public: str) -> bool:
    """Whether the owner of this public key signed the statement at the time that the signature states."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature.value), statement.signed_at(signature.at))
    except (InvalidSignature, ValueError):
        return False
    return True


def flaw_of(
    statement: Statement, signature: Signature, speakers: Speakers, *, began_at: datetime, now: datetime
) -> str | None:
    """Return the reason that a signed request to a run doesn't count, or None if it counts.

    A signal waits at the server until a worker handles it, so a signature doesn't expire while the run is alive.
    """
    if not is_signed(statement, signature, speakers.key):
        return "carries a signature that isn't valid for it"
    if signature.at < microseconds(began_at - TOLERANCE):
        return "was signed before this run started"
    if signature.at > microseconds(now + TOLERANCE):
        return "was signed in the future (compare the clocks of the machines)"
    if speakers.refused(mark_of(statement, signature.at)):
        return "was accepted before, or is too old to tell"
    return None


class StartGate:
    """Decides whether a run was started by the owner of the worker's key, and whether another one may start."""

    def __init__(self, key: SigningKey | None, *, requires_signature: bool) -> None:
        self._key = key
        self.requires_signature = requires_signature
        self.steering_key = key.public if key and requires_signature else ""
        """The public key that requests to a run must be signed with, or an empty string if they need no signature."""
        self._used: dict[str, str] = {}  # the execution that each accepted start belongs to

    def is_owners(self, start: SignedStart | None) -> bool:
        """Whether the start carries a valid signature. Raises BadRequest if it doesn't, but must."""
        if start is not None and self._holds(start):
            return True
        if self.requires_signature:
            found = "no signature" if start is None else "a signature that isn't valid for it"
            raise BadRequest(
                f"this worker takes only signed runs (LOOM_REQUIRE_SIGNED), and this one carries {found}: start it with"
                " `loom` or LoomClient and the worker's key (LOOM_HOME or LOOM_SIGNING_KEY)",
                field="LOOM_REQUIRE_SIGNED",
            )
        return False

    def _holds(self, start: SignedStart) -> bool:
        if self._key is None or not is_near(start.signature.at, start.began_at):
            return False
        if not is_signed(start.statement, start.signature, self._key.public):
            return False
        mark = mark_of(start.statement, start.signature.at)
        if self._used.setdefault(mark, start.execution) != start.execution:
            return False
        if len(self._used) > STARTS_REMEMBERED:
            del self._used[next(iter(self._used))]
        return True


KeySource = Callable[[], SigningKey | None]
"""Returns the key of this process, or None as long as there is none."""
