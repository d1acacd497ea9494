"""Make and verify proofs of approvals.

A proof is a JSON Web Signature with Ed25519 (`EdDSA`). The private key belongs to whoever decides who may approve: the
HTTP service, or a person's own client. Workers only have public keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Literal

from loom.domain.core.approval_proofs import LONGEST, TYPE, ApprovalClaims, digest_of_edit, read_claims
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, canonical
from loom.domain.core.signatures import TOLERANCE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM: Final = "EdDSA"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenCall:
    """The pending call that a proof is for, as a person has seen it."""

    run: str
    execution: str
    call: str
    tool: str
    digest: str
    grants: tuple[str, ...] = ()


class ApprovalKey:
    """A private key that proves approvals."""

    def __init__(self, private: "Ed25519PrivateKey") -> None:
        self._private = private
        self.id = key_id(private.public_key())

    def proof(
        self,
        call: ProvenCall,
        *,
        by: str,
        scope: Literal["once", "run"] = "once",
        arguments: JsonObject | None = None,
        at: datetime | None = None,
    ) -> str:
        """Return a proof that these people have approved the call, perhaps with other arguments. The rules that the
        approval of the call as it was seen would add say nothing about other arguments, so such a proof grants none.
        """
        claims = ApprovalClaims(
            run=call.run,
            execution=call.execution,
            call=call.call,
            tool=call.tool,
            digest=call.digest,
            arguments="" if arguments is None else digest_of_edit(arguments),
            scope=scope,
            grants=call.grants if scope == "run" and arguments is None else (),
            by=by,
            iat=int((at or datetime.now(UTC)).timestamp()),
            jti=token_hex(16),
        )
        return self.signed(claims.content)

    def signed(self, content: Mapping[str, Any]) -> str:
        """Return a token with this content."""
        from jwt import PyJWS  # noqa: PLC0415 - slow to import, and only proofs need it

        header = {"typ": TYPE, "kid": self.id}
        return PyJWS().encode(canonical(dict(content)).encode(), self._private, ALGORITHM, header)


def key_id(public: "Ed25519PublicKey") -> str:
    """Return the id of a key, which follows from the key."""
    return sha256(public.public_bytes_raw()).hexdigest()[:16]


class ApprovalKeys:
    """The public keys that proofs must be signed with. There may be several, so that a key can be replaced."""

    def __init__(self, keys: Sequence["Ed25519PublicKey"]) -> None:
        self._keys = {key_id(key): key for key in keys}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys."""
        return tuple(self._keys)

    def verified(self, proof: str, now: datetime) -> ApprovalClaims:
        """Return what the proof states. Raises BadRequest if none of the keys has signed it, or not by now."""
        from jwt import InvalidTokenError, PyJWS  # noqa: PLC0415 - slow to import, and only proofs need it

        if len(proof) > LONGEST:
            raise _refused(f"it is longer than {LONGEST} characters")
        jws = PyJWS(algorithms=[ALGORITHM])
        try:
            header = jws.get_unverified_header(proof)
            key = self._keys.get(header.get("kid", ""))
            if set(header) != {"alg", "typ", "kid"} or header["typ"] != TYPE or header["alg"] != ALGORITHM:
                raise _refused(f"its header must be of the type {TYPE} with the algorithm {ALGORITHM}")
            if key is None:
                raise _refused(f"no key of this worker has the id {header['kid']} (LOOM_APPROVAL_KEYS)")
            payload = jws.decode(proof, key, algorithms=[ALGORITHM])
        except (InvalidTokenError, ValueError, TypeError):
            raise _refused("its signature isn't valid") from None
        claims = read_claims(payload)
        if claims.iat > (now + TOLERANCE).timestamp():
            raise _refused("it was signed in the future (compare the clocks of the machines)")
        return claims


def _refused(why: str) -> BadRequest:
    return BadRequest(f"the proof of this approval is refused: {why}", field="proof")
