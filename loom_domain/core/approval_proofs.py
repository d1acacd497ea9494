"""Proven approvals: what a proof of an approval states, and which call it holds for.

A proof is a JSON Web Signature in the compact form. Whoever decides who may approve makes it, with a key that workers
don't have. A worker that has the public key runs no call that needs an approval without one. Requests to runs are
signed with the workers' own key (see `core/signatures.py`), so such a signature says nothing about who has approved.

`activities/approval_proofs.py` makes and verifies proofs. A run only compares what the proof in an approval states with
the call that it is for, and carries the proof to the worker.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final, Literal

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject, canonical

TYPE: Final = "loom-approval+jwt"
"""The type of a proof in its header. Another token that was signed with the same key is therefore no proof."""
LONGEST: Final = 8000
"""The maximum length of a proof in characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalClaims:
    """What a proof states."""

    run: str
    """The run that makes the call."""
    execution: str
    """Tells the run apart from others that use the same id, and from itself before a reset. See `execution_name`."""
    call: str
    """The id of the call in that run."""
    tool: str
    digest: str
    """The digest of the call that the person has seen."""
    arguments: str = ""
    """The digest of the arguments that the person has given instead, or empty."""
    scope: Literal["once", "run"] = "once"
    grants: tuple[str, ...] = ()
    """The allow rules that the approval adds for the rest of the run, as the person has seen them."""
    by: str
    """Who has approved. Several names are separated by commas."""
    iat: int
    """The time of signing, in seconds since the epoch."""
    jti: str
    """A random text that no other proof has. A proof holds for one call."""

    @property
    def content(self) -> JsonObject:
        """The content of the token."""
        return {**asdict(self), "grants": list(self.grants), "decision": "approve"}


_TEXTS: Final = ("run", "execution", "call", "tool", "digest", "by", "jti")
_NAMES: Final = frozenset((*ApprovalClaims.__dataclass_fields__, "decision"))


def execution_name(execution: str, reset_at: int) -> str:
    """Return the text that a proof names an execution by. A reset that makes approvals void changes it."""
    return f"{execution}@{reset_at}" if reset_at else execution


def digest_of_edit(arguments: JsonObject) -> str:
    """Return the digest of arguments that a person has given for a call."""
    return sha256(canonical(arguments).encode("utf-8", "surrogatepass")).hexdigest()


def claims_in(proof: str) -> ApprovalClaims:
    """Return what a proof states. Nothing has been verified. Raises BadRequest if it isn't a proof."""
    try:
        _, payload, _ = proof.split(".")
        content = b64decode(f"{payload}{'=' * (-len(payload) % 4)}", altchars=b"-_", validate=True)
    except ValueError:
        raise _not_a_proof("it is not a JSON Web Signature in the compact form") from None
    return read_claims(content)


def read_claims(payload: bytes) -> ApprovalClaims:
    """Read the content of a token. Raises BadRequest if it isn't that of a proof."""
    try:
        stated: Any = json.loads(payload)
    except (ValueError, RecursionError):
        raise _not_a_proof("its content is not JSON") from None
    if not isinstance(stated, Mapping) or set(stated) != _NAMES:
        raise _not_a_proof(f"its content must have exactly {', '.join(sorted(_NAMES))}")
    if any(not isinstance(stated[name], str) or not stated[name].strip() for name in _TEXTS):
        raise _not_a_proof(f"{', '.join(_TEXTS)} must be texts that aren't empty")
    grants = stated["grants"]
    if not isinstance(grants, list) or not all(isinstance(each, str) for each in grants):
        raise _not_a_proof("grants must be a list of rules")
    if not isinstance(stated["arguments"], str):
        raise _not_a_proof("arguments must be a text")
    if type(stated["iat"]) is not int or stated["scope"] not in ("once", "run") or stated["decision"] != "approve":
        raise _not_a_proof("iat, scope or decision is wrong")
    given = {name: value for name, value in stated.items() if name not in ("decision", "grants")}
    return ApprovalClaims(**given, grants=tuple(grants))


def mismatch(claims: ApprovalClaims, *, digest: str, by: str, scope: str, arguments: JsonObject | None) -> str | None:
    """Return the reason that a proof isn't for the approval that it came with, or None."""
    expected = {
        "digest": digest,
        "by": by,
        "scope": scope,
        "arguments": "" if arguments is None else digest_of_edit(arguments),
    }
    wrong = [name for name, value in expected.items() if getattr(claims, name) != value]
    return f"its proof is for another {wrong[0]}" if wrong else None


def _not_a_proof(why: str) -> BadRequest:
    return BadRequest(f"the proof of this approval can't be read: {why}", field="proof")
