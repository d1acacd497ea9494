"""Deliver events to a run in the order in which a replay delivers them.

**Events that come with a query.** A worker that hasn't cached a run answers a query about it by replaying its history.
If the server has recorded events since the run's last workflow task, such as a signal or a timer, the SDK hands them to
the run as well: before the task that will deliver them, with the time of the task before it, and perhaps in another
order. What the run decides from them can differ from what every later replay decides, and then the run can never go on
(TMPRL1100).

Such a run therefore doesn't get these events. It answers the query from the state after its last task and leaves the
cache, so that the next task replays it.

**A task that comes with a query.** If another worker has begun the run's next task, the query also brings that task's
events. The run can't tell the task from one of its own, and executes it. If the other worker then doesn't complete the
task, the server sends the task again together with later events. The run would get only the later events, but a replay
gets all of them at once. If a query follows a task, the run therefore compares the length of the history with its
commands when it gets the next task. If the events of the commands are missing, the run fails this task once and is
replayed. It can't see this if the task added no events and the run had executed tasks before, or if two workers in a
row didn't complete the task.

**Local activities that end together with other events.** If a local activity ends while its run answers a query, its
result is recorded with the workflow task that the query completes. In the first execution, the SDK delivers the result
with the next task, after the signals and updates of that task. In a replay, it delivers the result before them. If the
activity ends between two tasks, its result is recorded with the second one, and both orders agree. The run can't tell
the two cases apart. It therefore fails the task once, leaves the cache and is replayed from its history.

**Requests that come with the first task.** The SDK applies the signals and updates of the first task before it starts
the workflow. If the handlers are registered in `__init__`, updates come first, and then signals in the order of their
handlers. A replay may start or create the workflow earlier: if the first task was empty and an update follows, or if it
calls `workflow.patched`. Loom therefore always starts a run before it delivers anything.

**Updates that follow an empty task.** If the two latest tasks have started nothing, a worker that hasn't cached the run
gets the events of the last one together with an update that follows, and the SDK applies updates before results. Once
the update is accepted, replays divide the events where the last task began. Loom therefore delivers updates after all
other events of a task. If these are requests and results, the run can't tell which of them belong to the empty task. It
then leaves the updates unanswered: the server rejects them, and `LoomClient` sends them again. A reset records the
updates that arrived after the reset point as events, so their position is known.

**A reset.** The SDK tells a run that it was reset only by a new seed for its random numbers, and applies that seed
after the signals that the server repeats. Loom delivers it before them, because what a run accepts depends on it.

A flag in the completion of the first task distinguishes runs that follow the last two rules from those of earlier
releases. Others name the changes that the run has from its start (`loom.workflows.changes`).
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from typing import Any, Final

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from loom.workflows.changes import OF_EXECUTION, STARTED_WITH
from loom.workflows.executed_task import EVICTION, NO_EVENTS, QUERY, RESET, UPDATE, ExecutedTask

EVICT: Final = "loom_evict"
"""The name of the worker's function that removes an execution from its cache."""
_QUERY_ALONE: Final = "legacy_query"
"""The id of a query that doesn't belong to a workflow task."""
_START: Final = "initialize_workflow"
_IN_PARTS: Final = 0x4C6F6F6D
"""The flag of runs that get the events of a task in parts. The SDK's own flags are small numbers."""
_STARTS: Final = frozenset({_START, *NO_EVENTS}) - {RESET}
_SIGNAL: Final = "signal_workflow"
_ENDS: Final = (
    "complete_workflow_execution",
    "continue_as_new_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
)
"""The commands after which an execution gets nothing anymore."""


class InHistoryOrder(WorkflowRunner):
    """Wraps another runner, and delivers events to each run in the order of a replay."""

    def __init__(self, runner: WorkflowRunner) -> None:
        """Run workflows with this runner."""
        self.runner = runner

    def prepare_workflow(self, defn: Any) -> None:
        """See base class."""
        self.runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See base class."""
        evict, changes = det.extern_functions.get(EVICT), set[str]()
        in_parts = getattr(det.defn.cls, "gets_events_in_parts", False)
        functions = {**det.extern_functions, OF_EXECUTION: lambda: changes}
        instance = self.runner.create_instance(replace(det, extern_functions=functions))
        return GuardedRun(instance, evict, changes=changes, in_parts=in_parts)

    def set_worker_level_failure_exception_types(self, types: Any) -> None:
        """See base class."""
        self.runner.set_worker_level_failure_exception_types(types)


class GuardedRun(WorkflowInstance):
    """One run in a worker's cache."""

    def __init__(
        self,
        instance: WorkflowInstance,
        evict: Callable[[str], None] | None,
        *,
        changes: set[str] | None = None,
        in_parts: bool = False,
    ) -> None:
        """`evict` removes the execution with this id from the worker's cache. A replayer has none. `changes` gets the
        changes that the execution has from its start. `in_parts` says that the workflow may be started before it gets
        its first requests, and gets updates last.
        """
        self._instance = instance
        self._changes = set() if changes is None else changes
        self._in_parts = in_parts
        self._evict = evict
        self._length = 0
        self._task: tuple[int, int] = (0, 0)
        """The time, and the size of the history, with which the latest workflow task began."""
        self._must_be_replayed = False
        self._is_live = False
        """Whether the run has executed a workflow task for the first time here, and not only replayed some."""
        self._executed: ExecutedTask | None = None
        """The latest task, unless it was replayed."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """See base class."""
        kinds = {job.WhichOneof("variant") for job in act.jobs}
        if kinds <= {QUERY, EVICTION}:
            self._doubt_task(act)
            return self._instance.activate(act)
        task = (act.timestamp.ToNanoseconds(), act.history_size_bytes)
        has_new_events = act.history_length > self._length
        if not act.is_replaying and self._task == task and has_new_events:
            return self._without_events(act)
        if self._must_be_replayed:
            return _retried(act, "the run had not left the cache yet, and is replayed")
        # Until now, a run that isn't live has only been replayed, so these events are in the order of its history.
        if self._is_live and not act.is_replaying and has_new_events and _has_late_end(act):
            return _retried(act, "a local activity ended together with other events; a replay restores their order")
        if has_new_events and self._executed is not None and self._executed.was_not_completed(act, self._length):
            return _retried(
                act, "a task that came with a query wasn't completed; a replay restores the order of events"
            )
        if has_new_events:
            self._executed = None if act.is_replaying else self._new_task(kinds)
        self._length, self._task = act.history_length, task
        completion = self._in_order(act, is_start=_START in kinds)
        if self._executed is not None:
            self._executed.note(completion)
        return completion

    def _in_order(self, act: WorkflowActivation, *, is_start: bool) -> WorkflowActivationCompletion:
        if is_start and act.is_replaying and _IN_PARTS not in act.available_internal_flags:
            self._in_parts = False  # an earlier release has started it
        if is_start and self._in_parts:
            flags = act.available_internal_flags if act.is_replaying else STARTED_WITH
            self._changes.update(*(STARTED_WITH.get(flag, ()) for flag in flags))
        is_restored, self._is_live = not self._is_live, self._is_live or not act.is_replaying
        if not self._in_parts:
            return self._instance.activate(act)
        completion = self._delivered(act, is_start=is_start, is_restored=is_restored)
        if is_start and not act.is_replaying and completion.HasField("successful"):
            completion.successful.used_internal_flags.extend((_IN_PARTS, *STARTED_WITH))
        return completion

    def _new_task(self, kinds: Set[str | None]) -> ExecutedTask:
        # The server answers no query alone before the first task is completed, and sends updates only with a task.
        is_own = _START in kinds or (UPDATE in kinds and RESET not in kinds)
        return ExecutedTask(is_own, follows_replay=self._executed is None or self._executed.is_in_doubt)

    def _doubt_task(self, act: WorkflowActivation) -> None:
        """Note that a query may have brought the latest task, so that the next task is checked first."""
        task = self._executed
        if task is None or task.is_own or all(job.query_workflow.query_id != _QUERY_ALONE for job in act.jobs):
            return
        task.is_in_doubt = True
        if task.follows_replay and not task.events:  # the next task couldn't show it
            self._leave_cache(act.run_id)

    def _delivered(self, act: WorkflowActivation, *, is_start: bool, is_restored: bool) -> WorkflowActivationCompletion:
        """Deliver the events of a task in parts: what starts the run, a reset, other events, and updates."""
        parts: tuple[list[WorkflowActivationJob], ...] = ([], [], [], [])
        for job in act.jobs:
            kind = job.WhichOneof("variant")
            is_first = is_start and kind in _STARTS
            parts[3 if kind == UPDATE else 1 if kind == RESET else 0 if is_first else 2].append(job)
        others = {job.WhichOneof("variant") for job in parts[2]}
        is_unclear = is_restored and not act.is_replaying and not is_start and others - NO_EVENTS > {_SIGNAL}
        is_unclear &= not parts[1]
        left = [part for part in parts[: 3 if is_unclear else 4] if part]
        completion = self._instance.activate(_with_jobs(act, left[0]) if len(left[0]) < len(act.jobs) else act)
        for part in left[1:]:
            if not completion.HasField("successful") or _has_ended(completion):
                break
            later = self._instance.activate(_with_jobs(act, part))
            if later.HasField("failed"):
                return later
            completion.successful.MergeFrom(later.successful)
        return completion

    def _without_events(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self._leave_cache(act.run_id)
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        completion.successful.SetInParent()
        return completion

    def _leave_cache(self, run_id: str) -> None:
        """Leave the cache, so that the next task is replayed."""
        self._must_be_replayed = True
        if self._evict is not None:
            self._evict(run_id)

    def get_serialization_context(self, command_info: Any) -> Any:
        """See base class."""
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        """See base class."""
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> workflow.Info:
        """See base class."""
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        """See base class."""
        return self._instance.get_thread_id()


def _with_jobs(act: WorkflowActivation, jobs: Iterable[WorkflowActivationJob]) -> WorkflowActivation:
    """Return the activation with these of its jobs."""
    others = {field.name: value for field, value in act.ListFields() if field.name != "jobs"}
    return WorkflowActivation(**others, jobs=jobs)


def _has_ended(completion: WorkflowActivationCompletion) -> bool:
    return any(command.WhichOneof("variant") in _ENDS for command in completion.successful.commands)


def _has_late_end(act: WorkflowActivation) -> bool:
    """Whether the end of a local activity comes together with other events."""
    ends = sum(job.HasField("resolve_activity") and job.resolve_activity.is_local for job in act.jobs)
    return 0 < ends < sum(job.WhichOneof("variant") not in NO_EVENTS for job in act.jobs)


def _retried(act: WorkflowActivation, why: str) -> WorkflowActivationCompletion:
    """Return a failure of the workflow task. The server then sends the task again, with the whole history."""
    completion = WorkflowActivationCompletion(run_id=act.run_id)
    completion.failed.failure.message = why
    return completion
