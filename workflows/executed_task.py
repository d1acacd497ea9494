"""What a workflow task that a run has executed must have added to the history, if it was completed."""

from dataclasses import dataclass, field
from typing import Final

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

QUERY: Final = "query_workflow"
EVICTION: Final = "remove_from_cache"
RESET: Final = "update_random_seed"
UPDATE: Final = "do_update"
NO_EVENTS: Final = frozenset({QUERY, EVICTION, RESET, "notify_has_patch"})
"""Jobs of an activation that don't stand for an event."""
_NO_EVENTS_OF_THEIR_OWN: Final = NO_EVENTS | {UPDATE, "resolve_nexus_operation_start"}
_ATTRIBUTES: Final = ("upsert_workflow_search_attributes", "modify_workflow_properties")
_CANCEL_CHILD: Final = "cancel_child_workflow_execution"
_CANCELS: Final = {
    "cancel_timer": "start_timer",
    "request_cancel_activity": "schedule_activity",
    _CANCEL_CHILD: "start_child_workflow_execution",
}
"""Each command that begins something, by the command that cancels it."""


@dataclass
class ExecutedTask:
    """A workflow task that the run has executed here, and not only replayed."""

    is_own: bool
    """Whether this worker certainly got the task, and not only a query."""
    follows_replay: bool
    """Whether the run was replayed, or perhaps got the task of another worker, right before."""
    is_in_doubt: bool = False
    """Whether a query may have brought the task. If so, its commands may not have been sent to the server."""
    _begun: set[tuple[str, int]] = field(default_factory=set)
    _others: int = 0

    @property
    def events(self) -> int:
        """How many events its commands add to the history at least."""
        return len(self._begun) + self._others

    def note(self, completion: WorkflowActivationCompletion) -> None:
        """Record the commands of one activation."""
        for command in completion.successful.commands:
            kind = str(command.WhichOneof("variant"))
            if kind in _ATTRIBUTES:
                self._others += 1
            elif kind in _CANCELS.values():
                self._begun.add((kind, getattr(command, kind).seq))
            elif kind in _CANCELS:
                cancel = getattr(command, kind)
                seq = cancel.child_workflow_seq if kind == _CANCEL_CHILD else cancel.seq
                self._begun.discard((_CANCELS[kind], seq))  # what begins and ends in one task isn't recorded

    def was_not_completed(self, act: WorkflowActivation, length: int) -> bool:
        """Whether the task was sent again, with these events. `length` is the length of the history when it began."""
        if not self.is_in_doubt:
            return False
        events = sum(_has_event(job) + _has_started(job) for job in act.jobs)
        # The task itself accounts for three: it was scheduled, started, and completed or, for example, timed out.
        return act.history_length - length < 3 + self.events + events


def _has_event(job: WorkflowActivationJob) -> bool:
    """Whether an event before the task stands for this job alone."""
    kind = job.WhichOneof("variant")
    return kind not in _NO_EVENTS_OF_THEIR_OWN and not (
        job.HasField("resolve_activity") and job.resolve_activity.is_local
    )


def _has_started(job: WorkflowActivationJob) -> bool:
    """Whether the start of an activity is recorded beside its end. One that has timed out may never have started."""
    end = job.resolve_activity
    has_failed = end.result.HasField("failed") and not end.result.failed.failure.cause.HasField("timeout_failure_info")
    return not end.is_local and (has_failed or end.result.HasField("completed"))
