"""Tell people outside Loom what waits for them, and how runs end.

    run ──notify──▶ workflow Notify ──deliver_notification──▶ webhook, command
                             └──after a time, if it still waits──▶ second address

`notify` starts the workflow, and the run goes on. From then on, nothing that happens to the receiver, to the run or to
a worker can lose the notification.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from loom.domain.core.errors import NotDeliveredError
from loom.domain.core.messages import JsonObject
from loom.domain.core.notifications import (
    WAITS,
    Channel,
    Delivered,
    Delivery,
    Notification,
    NotifyRequest,
    body_of,
    message_id,
    still_waits,
)

_log = structlog.get_logger("loom.notifications")


class Receiver(Protocol):
    """The people behind one channel."""

    async def send(self, message_id: str, body: bytes) -> None:
        """Hand over a message. `message_id` stays the same in every attempt. Raises NotDeliveredError."""


class Notifications(Protocol):
    """The server's workflows."""

    async def start(self, request: NotifyRequest) -> None:
        """Start the workflow that delivers the notification, unless it has been started before."""

    async def status(self, run_id: str) -> JsonObject | None:
        """Return a run's answer to the `status` query, or None if the run no longer exists."""


async def send(receiver: Receiver, notification: Notification, channel: Channel) -> None:
    """Hand one notification to a receiver. Raises NotDeliveredError if the receiver doesn't take it."""
    body = json.dumps(body_of(notification, channel), ensure_ascii=False, separators=(",", ":")).encode()
    await receiver.send(message_id(notification, channel), body)


class Notifier:
    """Starts and performs deliveries."""

    def __init__(
        self,
        *,
        receivers: Mapping[Channel, Receiver],
        notifications: Notifications,
        redact: Callable[[str], str],
    ) -> None:
        self._receivers = receivers
        self._notifications = notifications
        self._redact = redact

    @activity.defn(name="notify")
    async def notify(self, request: NotifyRequest) -> None:
        """Start the notification's own workflow. The run doesn't wait for its delivery."""
        await self._notifications.start(replace(request, notification=request.notification.redacted(self._redact)))

    @activity.defn(name="deliver_notification")
    async def deliver_notification(self, request: Delivery) -> Delivered:
        """Deliver on one channel, unless this is late and nothing waits any more.

        Raises an application failure of the type NotDeliveredError if the receiver doesn't take it.
        """
        notification, channel = request.notification, request.channel
        receiver = self._receivers.get(channel)
        if receiver is None:
            return Delivered(sent=False, why="the worker's settings no longer name this receiver")
        is_late = channel == "escalation" or activity.info().attempt > 1
        if is_late and notification.event in WAITS and not await self._still_waits(notification):
            return Delivered(sent=False, why="nothing waits any more")
        try:
            await send(receiver, notification, channel)
        except NotDeliveredError as error:
            _log.warning("not_delivered", run_id=notification.run_id, channel=channel, why=error.message)
            raise _failure(error) from None
        _log.info("notified", run_id=notification.run_id, channel=channel, notification=notification.event)
        return Delivered(sent=True)

    async def _still_waits(self, notification: Notification) -> bool:
        status = await self._notifications.status(notification.run_id)
        return status is not None and still_waits(notification, status, self._redact)


def _failure(error: NotDeliveredError) -> ApplicationError:
    after: Any = error.context.get("retry_after")
    return ApplicationError(
        error.message,
        type=type(error).__name__,
        non_retryable=error.is_final,
        next_retry_delay=None if after is None else timedelta(seconds=after),
    )
