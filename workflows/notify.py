"""The `Notify` workflow, which delivers one notification. It outlives the run, workers and outages of the receiver."""

import asyncio
from datetime import datetime, timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from loom.activities.notifications import Notifier
from loom.domain.core.notifications import Channel, Delivered, Delivery, NotifyRequest, escalates_at

DELIVERY: Final = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=40),
    schedule_to_close_timeout=timedelta(days=3),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(minutes=5)
    ),
)
"""A receiver may be away for three days. Then the workflow fails, so that the list of workflows shows it."""


@workflow.defn(name="Notify")
class Notify:
    """Delivers on each channel by itself: no receiver waits for another one, and an escalation waits for none."""

    @workflow.init
    def __init__(self, request: NotifyRequest) -> None:
        self._request = request

    @workflow.run
    async def run(self, request: NotifyRequest) -> dict[Channel, Delivered]:
        """Deliver until each receiver has taken the notification, or nothing waits any more."""
        channels: list[Channel] = list(request.plan.channels)
        deliveries = [self._deliver(channel) for channel in channels]
        if (at := escalates_at(request.notification, request.plan)) is not None:
            channels.append("escalation")
            deliveries.append(self._escalate(at))
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return {
            channel: outcome
            for channel, outcome in zip(channels, outcomes, strict=True)
            if isinstance(outcome, Delivered)
        }

    async def _escalate(self, at: datetime) -> Delivered:
        if (seconds := (at - workflow.now()).total_seconds()) > 0:
            await workflow.sleep(seconds, summary="until the second address is told")
        return await self._deliver("escalation")

    async def _deliver(self, channel: Channel) -> Delivered:
        delivery = Delivery(notification=self._request.notification, channel=channel)
        config = DELIVERY.copy()
        config["activity_id"] = config["summary"] = channel
        return await workflow.execute_activity_method(Notifier.deliver_notification, delivery, **config)
