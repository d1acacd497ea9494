"""Start the workflows that deliver notifications, and ask runs whether something still waits."""

from datetime import timedelta
from typing import Any, Final

from temporalio.client import Client
from temporalio.common import AutoUpgradeVersioningOverride, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from loom.domain.core.messages import JsonObject
from loom.domain.core.notifications import NotifyRequest

NOTIFY: Final = "Notify"
"""The name of the workflow."""
_ANSWER: Final = timedelta(seconds=4)


class TemporalNotifications:
    """Implements `Notifications` with a Temporal client. Its methods raise RPCError if the server doesn't answer."""

    def __init__(self, client: Client, task_queue: str, *, versioned: bool) -> None:
        """`versioned` says whether the workers of this task queue belong to a deployment."""
        self._client = client
        self._task_queue = task_queue
        # A delivery may take days. It mustn't keep the workers of an old version.
        self._versioning = AutoUpgradeVersioningOverride() if versioned else None

    async def start(self, request: NotifyRequest) -> None:
        """See the port."""
        notification = request.notification
        try:
            await self._client.start_workflow(
                NOTIFY,
                request,
                id=f"loom-notify-{notification.id}",
                task_queue=self._task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=f"{notification.event} · {notification.run_id}"[:150],
                versioning_override=self._versioning,
                rpc_timeout=_ANSWER,
            )
        except WorkflowAlreadyStartedError:
            return

    async def status(self, run_id: str) -> JsonObject | None:
        """See the port."""
        try:
            answer: dict[str, Any] = await self._client.get_workflow_handle(run_id).query(
                "status", result_type=dict, rpc_timeout=_ANSWER
            )
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None
        return answer
