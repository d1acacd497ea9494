"""Whom a worker tells what waits for people: the plan that its runs are pinned to, and the receivers."""

from collections.abc import Mapping

from loom.activities.adapters.notifications.command import Command
from loom.activities.adapters.notifications.webhook import Webhook
from loom.activities.notifications import Receiver
from loom.composition.settings import Settings
from loom.domain.core.notifications import Channel, NotifyPlan


def notify_plan(settings: Settings) -> NotifyPlan | None:
    """Return whom these settings tell, or None if they tell nobody."""
    channels: dict[Channel, object] = {"webhook": settings.notify_url, "command": settings.notify_command}
    escalates = settings.notify_escalate_url is not None
    named = tuple(channel for channel, setting in channels.items() if setting)
    if not named and not escalates:
        return None
    return NotifyPlan(
        events=settings.notify_on,
        channels=named,
        escalate_after=settings.notify_escalate_after if escalates else None,
    )


def receivers_from(settings: Settings) -> Mapping[Channel, Receiver]:
    """Return the receivers of these settings."""
    secret = None if settings.notify_secret is None else settings.notify_secret.get_secret_value()
    receivers: dict[Channel, Receiver] = {}
    if settings.notify_url is not None:
        receivers["webhook"] = Webhook(settings.notify_url.get_secret_value(), secret)
    if settings.notify_command:
        receivers["command"] = Command(settings.notify_command)
    if settings.notify_escalate_url is not None:
        receivers["escalation"] = Webhook(settings.notify_escalate_url.get_secret_value(), secret)
    return receivers
