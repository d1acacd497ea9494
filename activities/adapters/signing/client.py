"""Sign the requests that a Temporal client sends to runs: starts, schedules, signals and updates."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import (
    CreateScheduleInput,
    Interceptor,
    OutboundInterceptor,
    ScheduleActionStartWorkflow,
    ScheduleHandle,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    StartWorkflowUpdateWithStartInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.converter import PayloadConverter

from loom.activities.start_gate import KeySource, statement_of
from loom.domain.core.signatures import RequestKind


class SigningClient(Interceptor):
    """Signs requests with the key of this process, if there is one."""

    def __init__(self, key: KeySource, converter: PayloadConverter) -> None:
        self._key = key
        self._converter = converter

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        """See base class."""
        return _SigningOutbound(next, self)

    def header(self, kind: RequestKind, name: str, run_id: str, arguments: Sequence[Any]) -> Mapping[str, Payload]:
        """Return the header for this request, or no header if there is no key."""
        if (key := self._key()) is None:
            return {}
        return key.header(statement_of(kind, name, run_id, arguments, self._converter), datetime.now(UTC))


class _SigningOutbound(OutboundInterceptor):
    def __init__(self, following: OutboundInterceptor, signer: SigningClient) -> None:
        super().__init__(following)
        self._signer = signer

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
        input.headers = {**input.headers, **self._signer.header("start", input.workflow, input.id, input.args)}
        return await super().start_workflow(input)

    async def create_schedule(self, input: CreateScheduleInput) -> ScheduleHandle:  # noqa: A002
        action = input.schedule.action
        if isinstance(action, ScheduleActionStartWorkflow):
            signed = self._signer.header("schedule", action.workflow, action.id, action.args)
            action.headers = {**(action.headers or {}), **signed}
        return await super().create_schedule(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:  # noqa: A002
        input.headers = {**input.headers, **self._signer.header("signal", input.signal, input.id, input.args)}
        await super().signal_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        input.headers = {**input.headers, **self._signer.header("update", input.update, input.id, input.args)}
        return await super().start_workflow_update(input)

    async def start_update_with_start_workflow(
        self,
        input: StartWorkflowUpdateWithStartInput,  # noqa: A002
    ) -> WorkflowUpdateHandle[Any]:
        start, update = input.start_workflow_input, input.update_workflow_input
        start.headers = {**start.headers, **self._signer.header("start", start.workflow, start.id, start.args)}
        update.headers = {**update.headers, **self._signer.header("update", update.update, start.id, update.args)}
        return await super().start_update_with_start_workflow(input)
