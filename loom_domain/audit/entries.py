"""The content of a row of the audit log: who did what, when, and to which run."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from loom.domain.core.messages import canonical


class Act(StrEnum):
    """Something that a person or a program has done."""

    START = "start"
    FORK = "fork"
    APPROVE = "approve"
    DENY = "deny"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    RETRY = "retry"
    SEND_MESSAGE = "send_message"
    SET_PERMISSIONS = "set_permissions"
    WRITE_FILE = "write_file"
    """Somebody asked for a file in the run's workspace to be written."""
    CANCEL = "cancel"
    """Temporal was asked to cancel the run, which aborts it."""
    TERMINATE = "terminate"
    RESET = "reset"
    """Temporal reset the run to an earlier point. `loom retry` resets a run that has ended."""
    REFUSE = "refuse"
    """The HTTP service refused a request."""
    ADD_TOKEN = "add_token"  # noqa: S105 - an act
    REVOKE_TOKEN = "revoke_token"  # noqa: S105 - an act
    SET_APPROVAL_POLICY = "set_approval_policy"
    """The HTTP service started with this policy."""
    ADD_KEY = "add_key"
    REWRAP_KEYS = "rewrap_keys"
    FORGET_TENANT = "forget_tenant"


STEERING: Final = frozenset(
    {
        Act.APPROVE,
        Act.DENY,
        Act.PAUSE,
        Act.RESUME,
        Act.ABORT,
        Act.RETRY,
        Act.SEND_MESSAGE,
        Act.SET_PERMISSIONS,
    }
)
"""The acts that reach a run as signals and updates of the same name."""


class Source(StrEnum):
    """How Loom learned of an act."""

    UPDATE = "update"
    """The run accepted the act."""
    SIGNAL = "signal"
    """The act was sent as a signal. Signals aren't acknowledged, and a run ignores a signal that arrives too late."""
    WORKFLOW = "workflow"
    """Another workflow, such as the run's parent, did it."""
    TEMPORAL = "temporal"
    """The Temporal server did it at somebody's request."""
    HTTP = "http"
    """The HTTP service did it."""
    COMMAND = "command"
    """A command did it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One act. An unknown text is empty."""

    key: str
    """Identifies the act. Acts with the same key are recorded only once."""
    at: datetime
    """When the act happened. For acts on runs, this is the Temporal server's time."""
    act: str
    """An `Act`. Rows from a later release may contain others."""
    source: str
    """A `Source`."""
    by: str = ""
    """Who did it. The HTTP service records the authenticated caller. Other clients can send any name."""
    identity: str = ""
    """The Temporal client, the parent run or the network address that the act came from."""
    tenant: str = ""
    run_id: str = ""
    subject: str = ""
    """What the act applies to, besides the run: the ID of a call, a token or a key, or a route of the HTTP API."""
    digest: str = ""
    """SHA-256 of the content in hexadecimal, by `content_digest`."""
    proof: str = ""
    """The proof of an approval, if it came with one. See `core/approval_proofs.py`."""


def content_digest(content: Any) -> str:
    """Return the SHA-256 of the content's canonical JSON, in hexadecimal."""
    return sha256(canonical(content).encode("utf-8", "surrogatepass")).hexdigest()
