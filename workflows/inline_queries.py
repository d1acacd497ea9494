"""A worker's interceptor: it keeps answers to queries in line, so that any Temporal client can read them."""

from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.worker import (
    HandleQueryInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from loom.workflows.payload_converter import in_line


class InlineQueries(Interceptor):
    """Marks the answers to queries for the payload store."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        del input
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    async def handle_query(self, input: HandleQueryInput) -> Any:  # noqa: A002
        answer = await super().handle_query(input)
        return answer if isinstance(answer, RawValue) else RawValue(in_line(workflow.payload_converter(), answer))
