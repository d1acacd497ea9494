"""Start, await, and signal child runs. If a parent closes before its child, the server cancels the child."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, FailureError, WorkflowAlreadyStartedError

from loom.domain.core.requests import RunError, RunResult
from loom.domain.machine.delegation import ChildStart
from loom.domain.run.events import AbortRequested, Event
from loom.domain.tree.events import ChildEnded, ChildStarted
from loom.domain.tree.tree import TreeSignal
from loom.workflows import options
from loom.workflows.activity_dispatch import priority_of
from loom.workflows.run_results import result_in
from loom.workflows.validation import AGENT_RUN, CREW_RUN


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The parent run."""

    advance: Callable[[Event], None]
    has_ended: Callable[[], bool]
    """Whether the run has an outcome. If it has one, its children have been told to end."""
    has_notices: Callable[[], bool]
    publish_notices: Callable[[], Awaitable[None]]

    async def run(self, starts: Sequence[ChildStart]) -> None:
        """Start these children and wait until all of them have ended.

        If the run is aborted, the wait is limited to `CHILDREN_END`.
        """
        children = [asyncio.create_task(run_child(start, self.advance)) for start in starts]
        while not all(child.done() for child in children):
            ended = self.has_ended()

            def changed(ended: bool = ended) -> bool:
                over = all(child.done() for child in children)
                return over or self.has_notices() or self.has_ended() is not ended

            try:
                await self.publish_notices()
                await workflow.wait_condition(changed, timeout=options.CHILDREN_END if ended else None)
            except asyncio.CancelledError:
                self.advance(AbortRequested(reason="cancelled through Temporal", at=workflow.now()))
            except TimeoutError:
                return  # the server cancels the remaining children when this run closes
        for child in children:
            child.result()  # raises an unexpected error that would otherwise be lost in the task


def child_name(turn: int, number: int) -> str:
    """Return the last segment of a child's run id. It changes after a reset, so that no two children share a stream."""
    return f"d{turn}-{number}-{workflow.uuid4().hex[:4]}"


async def run_child(start: ChildStart, advance: Callable[[ChildStarted | ChildEnded], None]) -> None:
    """Start the child and wait until it ends. Every outcome is converted to an event, and errors aren't raised."""
    try:
        handle = await workflow.start_child_workflow(
            AGENT_RUN if start.request.crew is None else CREW_RUN,
            args=[start.request, start.lineage],
            id=start.run_id,
            result_type=RunResult,
            task_timeout=workflow.info().task_timeout,
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            static_summary=start.lineage.description,
            priority=priority_of(start.request),
        )
        advance(ChildStarted(run_id=start.run_id))
        result = await handle
    except (ChildWorkflowError, WorkflowAlreadyStartedError) as error:
        told = result_in(error.cause) if isinstance(error, ChildWorkflowError) else None
        wrong = None if told else _error_of(error)
        advance(ChildEnded(run_id=start.run_id, result=told, error=wrong, at=workflow.now()))
    else:
        advance(ChildEnded(run_id=start.run_id, result=result, at=workflow.now()))


async def send_tree_signal(signal: TreeSignal) -> None:
    """Send a signal to another run in the tree. A signal to a run that has ended is dropped."""
    try:
        await workflow.get_external_workflow_handle(signal.to).signal(signal.signal, signal.payload)
    except FailureError as error:
        workflow.logger.info("%s not delivered to %s: %s", signal.signal, signal.to, error)


def _error_of(error: FailureError) -> RunError:
    cause = error.cause or error
    return RunError(type=type(cause).__name__, message=f"the sub-agent's run was ended from outside: {cause}")
