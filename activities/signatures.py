"""Read and verify the signatures of requests to runs. These functions are deterministic, so workflows use them, too.

A signature is made with Ed25519. It travels in a Temporal header, so the payloads of the public contract don't change.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload

from loom.domain.core.signatures import TOLERANCE, Signature, SignatureChecks, Statement, fingerprint_of, microseconds

HEADER: Final = "loom-signature"
"""The name of the header."""

_SIGNATURE: Final = TypeAdapter(Signature)


def header_of(signature: Signature) -> Mapping[str, Payload]:
    """Return the header that carries this signature."""
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
    # Slow to import, and only signed requests need it.
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature.value), statement.signed_at(signature.at))
    except (InvalidSignature, ValueError):
        return False
    return True


def rejection_of(
    statement: Statement, signature: Signature, signature_checks: SignatureChecks, *, began_at: datetime, now: datetime
) -> str | None:
    """Return the reason that a signed request to a run doesn't count, or None if it counts.

    A signal waits at the server until a worker handles it, so a signature doesn't expire while the run is alive.
    """
    if not is_signed(statement, signature, signature_checks.key):
        return "carries a signature that isn't valid for it"
    if signature.at < microseconds(began_at - TOLERANCE):
        return "was signed before this run started"
    if signature.at > microseconds(now + TOLERANCE):
        return "was signed in the future (compare the clocks of the machines)"
    if signature_checks.refused(fingerprint_of(statement, signature.at)):
        return "was accepted before, or is too old to tell"
    return None
