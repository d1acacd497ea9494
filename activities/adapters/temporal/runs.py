"""Find, describe, query and signal runs on a Temporal server. Temporal errors are translated into Loom errors."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.errors import answered, refused, unanswered
from loom.domain.core.errors import UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult

ANSWER_LIMIT: Final = 2.0
"""Timeout in seconds for a query to a run that hasn't ended."""
UPDATE_LIMIT: Final = 5.0
"""Timeout in seconds for a run to acknowledge an update."""


class TemporalRuns:
    """Access to runs. Every method raises RunNotFoundError if the run doesn't exist, and UnreachableError if the server
    can't be reached. Each method documents its other errors.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def found(self, query: str, limit: int | None = None) -> AsyncIterator[WorkflowExecution]:
        """Yield the executions that match a list filter, newest first. Raises BadRequest if the filter is invalid."""
        try:
            async for execution in self._client.list_workflows(query, limit=limit):
                yield execution
        except RPCError as error:
            raise unanswered(error, "") from error

    async def described(self, run_id: str) -> WorkflowExecutionDescription:
        """Return the information that the server has about a run. This doesn't require a worker."""
        with answered(run_id):
            return await self._handle(run_id).describe()

    async def ended_as(self, execution: WorkflowExecution) -> str:
        """Return the status in a completed run's result. Return an empty string if the result no longer exists or can't
        be read.
        """
        handle = self._client.get_workflow_handle(execution.id, run_id=execution.run_id, result_type=RunResult)
        try:
            result: RunResult = await handle.result()
            return result.status
        except (RPCError, ApplicationError, ValueError, RuntimeError):
            return ""

    async def query(self, run_id: str, name: str, result_type: Any) -> Any:
        """Query a run. Raises UnreachableError if no worker answers the query."""
        with answered(run_id):
            try:
                # Don't use `rpc_timeout`, because it applies to each attempt separately.
                async with asyncio.timeout(ANSWER_LIMIT):
                    return await self._handle(run_id).query(name, result_type=result_type)
            except (RPCError, WorkflowQueryFailedError, TimeoutError) as error:
                raise UnreachableError("no worker responds; start one with `loom worker` or `loom up`") from error

    async def update(self, run_id: str, name: str, payload: JsonObject) -> JsonObject | None:
        """Send an update and return its receipt, or None if no worker sends one or the server takes no more now.
        Raises RefusedError if the run rejects the update, and BadRequest if the update is invalid.
        """
        with answered(run_id):
            try:
                receipt: JsonObject = await self._handle(run_id).execute_update(
                    name, payload, result_type=dict, rpc_timeout=timedelta(seconds=UPDATE_LIMIT)
                )
            except WorkflowUpdateFailedError as error:
                raise refused(error) from error
            except WorkflowUpdateRPCTimeoutOrCancelledError:
                return None
            except RPCError as error:
                # A server takes a limited number of updates of a run at once, but any number of signals.
                if error.status is not RPCStatusCode.RESOURCE_EXHAUSTED:
                    raise
                return None
        return receipt

    async def signal(self, run_id: str, name: str, payload: JsonObject) -> None:
        """Send a signal. The server stores the signal until a worker processes it. Raises RefusedError if the run has
        ended.
        """
        with answered(run_id):
            await self._handle(run_id).signal(name, payload)

    def _handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(run_id)
