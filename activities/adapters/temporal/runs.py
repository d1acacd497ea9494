"""Find, describe, query and signal runs on a Temporal server. Temporal errors are translated into Loom errors."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.errors import UNREADABLE, answered, is_cut_off, is_lost, refused, unanswered
from loom.domain.core.errors import RunNotFoundError, UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult

ANSWER_LIMIT: Final = 2.0
"""Timeout in seconds for a query to a run that hasn't ended."""
UPDATE_LIMIT: Final = 5.0
"""Timeout in seconds for a run to acknowledge an update."""
UPDATE_TRIES: Final = 3
"""How often an update is sent that the worker's SDK loses. It may lose one that reaches a run together with queries,
shortly after the worker has started (sdk-core logs "unprocessed protocol messages"). The server then rejects it.
"""
NO_UPDATE_NOW: Final = (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.FAILED_PRECONDITION)
"""The server's answers to an update that has had no effect, after which it still takes a signal: the run has too many
updates at once, or a workflow task failed because something else happened to the run at the same time.
"""
LAST_EVENTS: Final = 30
"""The number of events in which a change of what a run waits for is looked up, the newest first."""
PAGE: Final = 50
"""The number of ended executions that one query checks for a retry that continued them."""


UNQUOTABLE: Final = frozenset("'\\\0")
"""Characters that no value in a List Filter can have."""


class TemporalRuns:
    """Access to runs. Every method raises RunNotFoundError if the run doesn't exist, and UnreachableError if the server
    can't be reached. Each method documents its other errors.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def found(
        self, query: str, limit: int | None = None, page_size: int = 1000
    ) -> AsyncIterator[WorkflowExecution]:
        """Yield the executions that match a list filter, newest first. Raises BadRequest if the filter is invalid."""
        try:
            async for execution in self._client.list_workflows(query, limit=limit, page_size=page_size):
                yield execution
        except RPCError as error:
            raise unanswered(error, "") from error

    async def current(self, query: str) -> AsyncIterator[WorkflowExecution]:
        """Like `found`, but yield a retried run only as the execution that continues it."""
        page: list[WorkflowExecution] = []
        async for execution in self.found(query, page_size=PAGE):
            page.append(execution)
            if len(page) == PAGE:
                for each in await self._not_continued(page):
                    yield each
                page = []
        for each in await self._not_continued(page):
            yield each

    async def _not_continued(self, executions: Collection[WorkflowExecution]) -> list[WorkflowExecution]:
        ended = {each.id for each in executions if each.status is not WorkflowExecutionStatus.RUNNING}
        ids = ", ".join(f"'{name}'" for name in sorted(ended) if not UNQUOTABLE.intersection(name))
        if not ids:
            return list(executions)
        known = f"WorkflowId IN ({ids}) AND ExecutionStatus != 'ContinuedAsNew'"
        number = Counter([each.id async for each in self.found(known)])
        return [each for each in executions if number[each.id] < 2 or not await self._is_continued(each)]

    async def _is_continued(self, execution: WorkflowExecution) -> bool:
        description = await self._client.get_workflow_handle(execution.id, run_id=execution.run_id).describe()
        return bool(description.raw_description.workflow_extended_info.reset_run_id)

    async def described(self, run_id: str) -> WorkflowExecutionDescription:
        """Return the information that the server has about a run. This doesn't require a worker."""
        with answered(run_id):
            return await self._handle(run_id).describe()

    async def started_at(self, described: WorkflowExecutionDescription) -> datetime | None:
        """Return when a run started, even if it has continued as new since. Return None if the server has already
        deleted the execution with which it started.
        """
        first = described.raw_description.workflow_execution_info.first_run_id
        if first in ("", described.run_id):  # earlier servers don't name it
            return described.start_time
        try:
            with answered(described.id):
                return (await self._client.get_workflow_handle(described.id, run_id=first).describe()).start_time
        except RunNotFoundError:
            return None

    async def ended_as(self, execution: WorkflowExecution) -> str:
        """Return the status in a completed run's result. Return an empty string if the result no longer exists or can't
        be read.
        """
        handle = self._client.get_workflow_handle(execution.id, run_id=execution.run_id, result_type=RunResult)
        try:
            result: RunResult = await handle.result()
            return result.status
        except UNREADABLE:
            return ""

    async def waiting_since(self, execution: WorkflowExecution) -> datetime | None:
        """Return when a run began to wait for its current reason. None if its last events don't show it."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=ExecutionId(workflow_id=execution.id, run_id=execution.run_id),
            maximum_page_size=LAST_EVENTS,
        )
        with answered(execution.id):
            found = await self._client.workflow_service.get_workflow_execution_history_reverse(request)
        for event in found.history.events:
            upserted = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
            if "LoomWaitingOn" in upserted:
                return event.event_time.ToDatetime(tzinfo=UTC)
        return None

    async def query(self, run_id: str, name: str, result_type: Any, *arguments: object) -> Any:
        """Query a run. Raises RunNotFoundError if it doesn't exist, and UnreachableError if no worker answers."""
        with answered(run_id):
            try:
                # Don't use `rpc_timeout`, because it applies to each attempt separately.
                async with asyncio.timeout(ANSWER_LIMIT):
                    return await self._handle(run_id).query(name, args=list(arguments), result_type=result_type)
            except (RPCError, WorkflowQueryFailedError, TimeoutError) as error:
                if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                    raise
                raise UnreachableError("no worker responds; start one with `loom worker` or `loom up`") from error

    async def update(self, run_id: str, name: str, payload: JsonObject) -> JsonObject | None:
        """Send an update and return its receipt, or None if no worker sends one or the server accepts no more at the
        moment. Raises RefusedError if the run rejects the update, and BadRequest if the update is invalid.
        """
        with answered(run_id):
            for _ in range(UPDATE_TRIES):
                try:
                    receipt: JsonObject = await self._handle(run_id).execute_update(
                        name, payload, result_type=dict, rpc_timeout=timedelta(seconds=UPDATE_LIMIT)
                    )
                except WorkflowUpdateFailedError as error:
                    if is_lost(error):
                        continue
                    raise refused(error) from error
                except WorkflowUpdateRPCTimeoutOrCancelledError:
                    return None
                except RPCError as error:
                    if is_cut_off(error):
                        continue
                    if error.status not in NO_UPDATE_NOW:
                        raise
                    return None
                return receipt
        return None

    async def update_or_start(
        self, start: WithStartWorkflowOperation[Any, Any], name: str, payload: JsonObject
    ) -> JsonObject | None:
        """Send an update to a run, and start the run in the same request if it isn't running. Return the receipt, or
        None if no worker sends one. Raises the errors of `update`.
        """
        try:
            receipt: JsonObject = await self._client.execute_update_with_start_workflow(
                name,
                payload,
                start_workflow_operation=start,
                result_type=dict,
                rpc_timeout=timedelta(seconds=UPDATE_LIMIT),
            )
        except WorkflowUpdateFailedError as error:
            if is_lost(error):
                return None
            raise refused(error) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError:
            return None
        except RPCError as error:
            if error.status in NO_UPDATE_NOW or is_cut_off(error):
                return None
            raise unanswered(error, "") from error
        return receipt

    async def signal(self, run_id: str, name: str, payload: JsonObject) -> None:
        """Send a signal. The server stores the signal until a worker processes it. Raises RefusedError if the run has
        ended.
        """
        with answered(run_id):
            await self._handle(run_id).signal(name, payload)

    def _handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(run_id)
