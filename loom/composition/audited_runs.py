"""A worker's interceptor: it notes what somebody has started or steered, so that the audit log reads them soon.

It only saves time. The audit log also finds these runs if the worker dies before it has read them.
"""

from typing import Any, Protocol

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from loom.domain.audit.entries import STEERING
from loom.workflows.agent_run import AgentRun
from loom.workflows.run_files import RunFiles


class Note(Protocol):
    """Notes that an execution of a run has received something. Any thread may call it."""

    def __call__(self, run_id: str, execution: str, *, is_update: bool = False) -> None:
        """Note it. An update is in the history only after the run has answered it."""
        ...


class AuditedRuns(Interceptor):
    """Notes the runs of a worker that have received something. A replay notes nothing."""

    def __init__(self, note: Note) -> None:
        """`note` is called in the threads of workflows."""
        self._note = note

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        note = self._note

        def note_run(*, is_update: bool = False) -> None:
            info = workflow.info()
            if not workflow.unsafe.is_replaying() and isinstance(workflow.instance(), AgentRun | RunFiles):
                note(info.workflow_id, info.run_id, is_update=is_update)

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
                if workflow.info().continued_run_id is None:  # to continue as new is no act
                    note_run()
                return await super().execute_workflow(input)

            async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002
                if input.signal in STEERING:
                    note_run()
                await super().handle_signal(input)

            async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002
                note_run(is_update=True)
                return await super().handle_update_handler(input)

        return Inbound
