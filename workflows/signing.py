"""A worker's interceptor: it lets runs read the signatures of requests, and signs what they send to other runs.

Requests to other runs of a tree are signed with the worker's own key, if the run's start was signed. A signature that
is sent has no effect on the sending run, so a replay may omit it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.worker import (
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    SignalExternalWorkflowInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ChildWorkflowHandle

from loom.activities.start_gate import KeySource, statement_of
from loom.domain.core.signatures import RequestKind
from loom.workflows.signed_requests import remember_request


@runtime_checkable
class SigningRun(Protocol):
    """A workflow whose requests to other runs are signed, as long as its own start was."""

    @property
    def is_signed(self) -> bool:
        """Whether the start of this run was signed."""


class SignedRequests(Interceptor):
    """Lets runs read the signatures of requests, and signs the requests that signed runs send."""

    def __init__(self, key: KeySource = lambda: None) -> None:
        self._key = key

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        key = self._key

        class Inbound(_Inbound):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, key))

        return Inbound


class _Inbound(WorkflowInboundInterceptor):
    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002
        remember_request(input.headers, input.args)
        await super().handle_signal(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:  # noqa: A002
        remember_request(input.headers, input.args)
        super().handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002
        remember_request(input.headers, input.args)
        return await super().handle_update_handler(input)


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, following: WorkflowOutboundInterceptor, key: KeySource) -> None:
        super().__init__(following)
        self._key = key

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> ChildWorkflowHandle[Any, Any]:  # noqa: A002
        input.headers = {**input.headers, **self._header("start", input.workflow, input.id, input.args)}
        return await super().start_child_workflow(input)

    async def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:  # noqa: A002
        input.headers = {**input.headers, **self._header("signal", input.signal, input.workflow_id, input.args)}
        await super().signal_external_workflow(input)

    def _header(self, kind: RequestKind, name: str, run_id: str, arguments: Sequence[Any]) -> Mapping[str, Payload]:
        run = workflow.instance()
        if not isinstance(run, SigningRun) or not run.is_signed or (key := self._key()) is None:
            return {}
        return key.header(statement_of(kind, name, run_id, arguments, workflow.payload_converter()), workflow.now())
