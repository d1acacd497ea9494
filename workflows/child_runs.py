"""Start, await, and signal child runs.

The server reports a child's end only to the execution that started the child. An execution that continues as new leaves
its children running, and the next one follows them. The server then doesn't end them when their parent is terminated,
so a child that can't reach its parent ends by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, ChildWorkflowError, FailureError, WorkflowAlreadyStartedError
from temporalio.workflow import ActivityHandle, ParentClosePolicy

from loom.activities.failures import result_in
from loom.domain.core.requests import AGENT_RUN, CREW_RUN, RunError, RunResult
from loom.domain.machine.delegation import ChildStart
from loom.domain.run.activity_payloads import ChildOutcome
from loom.domain.run.events import AbortRequested, Event
from loom.domain.run.state import RunState
from loom.domain.tree.events import ChildEnded, ChildStarted
from loom.domain.tree.tree import TreeSignal
from loom.workflows import activity_dispatch as scheduling
from loom.workflows import options
from loom.workflows.activity_dispatch import priority_of

_NO_SUCH_RUN: Final = "it was not found"
"""The SDK's error message when the run to signal doesn't exist or has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The parent run."""

    advance: Callable[[Event], None]
    current: Callable[[], RunState]
    """Returns the run's state. If the run has an outcome, its children have been told to end."""
    publish_notices: Callable[[], Awaitable[None]]
    is_rotation_due: Callable[[], bool]
    rotate: Callable[[], Awaitable[None]]
    """Continues as new, unless the run has an outcome."""


@dataclass(slots=True)
class Children:
    """The children of a run that have not ended: those that this execution has started, and those of the one before."""

    _parent: Parent
    _running: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, starts: Sequence[ChildStart]) -> None:
        """Start these children."""
        self._running += [asyncio.create_task(_run_child(start, self._parent.advance)) for start in starts]

    def follow(self) -> None:
        """Follow the children that an earlier execution started, to find out how they end."""
        for child in self._parent.current().tree.running:
            ended = scheduling.await_child(self._parent.current(), child)
            self._running.append(asyncio.create_task(_follow_child(child.run_id, ended, self._parent.advance)))

    async def ended(self) -> None:
        """Wait until all of them have ended. Meanwhile, the run may continue as new.

        If the run is aborted, the wait is limited to `CHILDREN_END`.
        """
        while not all(child.done() for child in self._running):
            has_ended = self._has_ended()

            def changed(has_ended: bool = has_ended) -> bool:
                over = all(child.done() for child in self._running)
                noticed = bool(self._parent.current().notices.pending)
                return over or noticed or self._has_ended() is not has_ended or self._may_rotate()

            try:
                await self._parent.publish_notices()
                await workflow.wait_condition(changed, timeout=options.CHILDREN_END if has_ended else None)
                if self._may_rotate():
                    await self._parent.rotate()
            except asyncio.CancelledError:
                if workflow.cancellation_reason() is None:  # the run leaves its worker's cache
                    raise
                self._parent.advance(AbortRequested(reason="cancelled through Temporal", at=workflow.now()))
            except TimeoutError:
                self._running = []  # they have been told to end, and the server cancels those that it may
        ended, self._running = self._running, []
        for child in ended:
            child.result()  # raises an unexpected error that would otherwise be lost in the task

    def _has_ended(self) -> bool:
        return self._parent.current().outcome is not None

    def _may_rotate(self) -> bool:
        return (
            not self._has_ended() and self._parent.current().tree.outlives_execution and self._parent.is_rotation_due()
        )


def child_name(turn: int, number: int) -> str:
    """Return the last segment of a child's run id. It changes after a reset, so that no two children share a stream."""
    return f"d{turn}-{number}-{workflow.uuid4().hex[:4]}"


async def _run_child(start: ChildStart, advance: Callable[[ChildStarted | ChildEnded], None]) -> None:
    """Start the child and wait until it ends. Every outcome is converted to an event, and errors aren't raised."""
    try:
        handle = await workflow.start_child_workflow(
            AGENT_RUN if start.request.crew is None else CREW_RUN,
            args=[start.request, start.lineage],
            id=start.run_id,
            result_type=RunResult,
            task_timeout=workflow.info().task_timeout,
            # The server counts continue-as-new as the parent's end, so it must not end a child that may outlive it.
            parent_close_policy=ParentClosePolicy.ABANDON
            if start.lineage.detached
            else ParentClosePolicy.REQUEST_CANCEL,
            static_summary=start.lineage.description,
            priority=priority_of(start.request, start.request.priority or start.lineage.priority),
        )
        advance(ChildStarted(run_id=start.run_id))
        result = await handle
    except (ChildWorkflowError, WorkflowAlreadyStartedError) as error:
        told = result_in(error.cause) if isinstance(error, ChildWorkflowError) else None
        wrong = None if told else _error_of(error)
        advance(ChildEnded(run_id=start.run_id, result=told, error=wrong, at=workflow.now()))
    else:
        advance(ChildEnded(run_id=start.run_id, result=result, at=workflow.now()))


async def _follow_child(
    run_id: str, outcome: ActivityHandle[ChildOutcome], advance: Callable[[ChildEnded], None]
) -> None:
    try:
        ended = await outcome
    except ActivityError as error:
        ended = ChildOutcome(error=_error_of(error))
    advance(ChildEnded(run_id=run_id, result=ended.result, error=ended.error, at=workflow.now()))


async def send_tree_signal(signal: TreeSignal) -> bool:
    """Send a signal to another run in the tree. Returns False if that run has ended, in which case it is dropped."""
    try:
        await workflow.get_external_workflow_handle(signal.to).signal(signal.signal, signal.payload)
    except FailureError as error:
        workflow.logger.info("%s not delivered to %s: %s", signal.signal, signal.to, error)
        return _NO_SUCH_RUN not in error.message
    return True


def _error_of(error: FailureError) -> RunError:
    cause = error.cause or error
    return RunError(type=type(cause).__name__, message=f"the sub-agent's run was ended from outside: {cause}")
