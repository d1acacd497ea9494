"""Notifications: what people outside Loom are told about a run, as plain values.

A notification says that something waits for a person (`ask`, `question`, `parked`), or that a run is over (`ended`,
`failed`). The run makes it (`run.notifications`), a workflow of its own delivers it, and only the worker that delivers
it knows the addresses.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

from loom.domain.core.messages import JsonObject

LONGEST_SUMMARY: Final = 500
"""The maximum number of characters of a summary. The run has the full text."""


class NotifyEvent(StrEnum):
    """What people are told."""

    ASK = "ask"
    """A tool call waits for approval, or for the answers to an MCP server's questions."""
    QUESTION = "question"
    """An agent waits for an answer."""
    PARKED = "parked"
    """A run waits for its provider, or for an operator."""
    ENDED = "ended"
    """A run has ended without an error. Its `status` says how."""
    FAILED = "failed"
    TEST = "test"
    """A trial, which no run sends."""


EVENTS: Final = tuple(event for event in NotifyEvent if event is not NotifyEvent.TEST)
"""What runs tell, if nobody chooses."""
WAITS: Final = frozenset({NotifyEvent.ASK, NotifyEvent.QUESTION, NotifyEvent.PARKED})
"""The events that somebody must act on. They are escalated, and not sent any more once nothing waits."""

Channel: TypeAlias = Literal["webhook", "command", "escalation"]
"""A way to people. Each channel is tried until its own receiver has taken the notification."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifyPlan:
    """Whom a worker can tell, and what. Addresses and secrets stay in the worker's settings."""

    events: tuple[NotifyEvent, ...]
    channels: tuple[Channel, ...]
    escalate_after: float | None = None
    """Seconds after which people at the second address are told of what still waits. None: nobody is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """One notification about one run."""

    event: NotifyEvent
    key: str
    """Tells the notifications of a run apart."""
    run_id: str
    root_run_id: str
    session_id: str
    agent: str
    since: datetime
    summary: str
    commands: tuple[str, ...]
    """The commands that answer, or that show more."""
    tenant: str | None = None
    status: str = ""
    """How the run has ended. Empty while it runs."""
    call_id: str = ""
    tool: str = ""
    risk: str = ""
    digest: str = ""
    """What an approval is bound to."""
    execution: str = ""
    """Tells runs apart that use the same id one after the other."""

    @property
    def id(self) -> str:
        """A globally unique id. The same notification always has the same id."""
        return blake2b(f"{self.run_id}/{self.execution}/{self.key}".encode(), digest_size=12).hexdigest()

    def redacted(self, redact: Callable[[str], str]) -> "Notification":
        """Return the notification without secrets in its summary, which is shortened to fit into a message."""
        return replace(self, summary=_shown(self.summary, redact))


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifyRequest:
    """The input of the workflow `Notify`."""

    notification: Notification
    plan: NotifyPlan

    @property
    def tenant(self) -> str | None:
        """The tenant that the notification is about. Its key encrypts the workflow's payloads."""
        return self.notification.tenant


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """The request to deliver a notification on one channel."""

    notification: Notification
    channel: Channel


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """What has become of a delivery."""

    sent: bool
    why: str = ""
    """Why it wasn't sent."""


def still_waits(notification: Notification, status: JsonObject, redact: Callable[[str], str]) -> bool:
    """Whether what a redacted notification is about still waits, according to the answer to the `status` query."""
    match notification.event:
        case NotifyEvent.ASK:
            asks = status.get("pending_approvals") or ()
            wanted = (notification.call_id, notification.digest)
            return any((ask.get("call_id"), ask.get("digest") or "") == wanted for ask in asks)
        case NotifyEvent.QUESTION:
            return _shown(str(status.get("question") or ""), redact) == notification.summary
        case NotifyEvent.PARKED:
            parked = status.get("parked")
            return isinstance(parked, Mapping) and f"parked-{parked.get('since')}" == notification.key
        case NotifyEvent.ENDED | NotifyEvent.FAILED | NotifyEvent.TEST:
            return True


def _shown(text: str, redact: Callable[[str], str]) -> str:
    clean = redact(text)
    return clean if len(clean) <= LONGEST_SUMMARY else f"{clean[: LONGEST_SUMMARY - 1]}…"


def message_id(notification: Notification, channel: Channel) -> str:
    """Return the id of what one receiver gets. It stays the same in every attempt, so a receiver can drop doubles."""
    return f"msg_{notification.id}{'_escalation' if channel == 'escalation' else ''}"


def body_of(notification: Notification, channel: Channel) -> JsonObject:
    """Return what a receiver gets: `text` for chat systems such as Slack, and the facts in `data` for programs."""
    given = {name: value for name, value in asdict(notification).items() if value not in (None, "")}
    data = {name: value for name, value in given.items() if name not in ("key", "execution")}
    data |= {"since": notification.since.isoformat(), "commands": list(notification.commands)}
    return {
        "type": f"run.{notification.event}",
        "timestamp": notification.since.isoformat(),
        "text": text_of(notification, channel),
        "data": {**data, "escalated": channel == "escalation"},
    }


_WHAT: Final[Mapping[NotifyEvent, str]] = {
    NotifyEvent.ASK: "asks for approval",
    NotifyEvent.QUESTION: "asks",
    NotifyEvent.PARKED: "is parked",
    NotifyEvent.FAILED: "failed",
    NotifyEvent.TEST: "can reach you",
}


def text_of(notification: Notification, channel: Channel) -> str:
    """Return the notification for people. Slack reads no mention and no link in it, whoever wrote the summary."""
    what = _WHAT.get(notification.event) or f"ended ({notification.status})"
    again = "Still waiting: " if channel == "escalation" else ""
    risk = f" · risk: {notification.risk}" if notification.risk else ""
    lines = (
        f"{again}{notification.agent} {what} · {notification.run_id}{risk}",
        notification.summary.strip(),
        *notification.commands,
    )
    text = "\n".join(line for line in lines if line)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escalates_at(notification: Notification, plan: NotifyPlan) -> datetime | None:
    """Return when people at the second address are told, or None if they aren't."""
    if plan.escalate_after is None or notification.event not in WAITS:
        return None
    return notification.since + timedelta(seconds=plan.escalate_after)
