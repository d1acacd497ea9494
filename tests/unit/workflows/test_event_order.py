"""Events reach a run when they reach a replay: not with a query, and not before the end of a local activity."""

from collections.abc import Sequence
from typing import Any, Final

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance

from loom.workflows.changes import STARTED_WITH
from loom.workflows.event_order import GuardedRun

INIT, SIGNAL, RESULT, QUERY, EVICTION = (
    "initialize_workflow",
    "signal_workflow",
    "resolve_activity",
    "query_workflow",
    "remove_from_cache",
)
RESET: Final = "update_random_seed"
PATCH: Final = "notify_has_patch"
FLAGS: Final = (0x4C6F6F6D,)
QUERY_ALONE: Final = "a query without a task"
FAILURE: Final = "an activity that failed"
TIMEOUT: Final = "an activity that timed out before it started"
LOCAL_END: Final = "the end of a local activity"


class Run(WorkflowInstance):
    """Notes what reaches it."""

    def __init__(self, fails_at: int = -1, *, ends: bool = False, commands: Sequence[str] = ("",)) -> None:
        self.fails_at = fails_at
        self.ends = ends
        self.commands = commands
        self.seen: list[str] = []
        self.activations: list[list[str]] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        kinds = [str(job.WhichOneof("variant")) for job in act.jobs]
        self.activations.append(kinds)
        self.seen += kinds
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        if len(self.activations) - 1 == self.fails_at:
            completion.failed.failure.message = "no"
            return completion
        for name in self.commands:
            command = completion.successful.commands.add()
            if name:
                getattr(command, name).SetInParent()
        if self.ends and RESULT in kinds:
            command.continue_as_new_workflow_execution.SetInParent()
        return completion

    def get_serialization_context(self, command_info: Any) -> Any:
        raise NotImplementedError

    def get_external_store_context(self, command_info: Any) -> Any:
        raise NotImplementedError

    def get_info(self) -> Any:
        raise NotImplementedError


def activation(*kinds: str, length: int, seconds: int, size: int, is_replaying: bool = False) -> WorkflowActivation:
    """What the SDK hands to a run: events up to the number `length`, in a task that began at this time."""
    jobs = []
    for kind in kinds:
        jobs.append(job := WorkflowActivationJob())
        if kind == LOCAL_END:
            job.resolve_activity.is_local = True
        elif kind == QUERY_ALONE:
            job.query_workflow.query_id = "legacy_query"
        elif kind == RESULT:
            job.resolve_activity.result.completed.SetInParent()
        elif kind == FAILURE:
            job.resolve_activity.result.failed.failure.cause.application_failure_info.SetInParent()
        elif kind == TIMEOUT:
            job.resolve_activity.result.failed.failure.cause.timeout_failure_info.SetInParent()
        else:
            getattr(job, kind).SetInParent()
    act = WorkflowActivation(run_id="r", history_length=length, history_size_bytes=size, is_replaying=is_replaying)
    act.timestamp.FromSeconds(seconds)
    act.jobs.extend(jobs)
    return act


def test_events_of_a_task_reach_the_run() -> None:
    run, evicted = Run(), list[str]()
    guarded = GuardedRun(run, evicted.append)

    guarded.activate(activation(INIT, length=3, seconds=1, size=100))
    guarded.activate(activation(QUERY, length=3, seconds=1, size=100))
    done = guarded.activate(activation(SIGNAL, length=8, seconds=2, size=200))

    assert run.seen == [INIT, QUERY, SIGNAL]
    assert len(done.successful.commands) == 1
    assert evicted == []


def test_events_that_come_with_a_query_wait_for_their_task() -> None:
    run, evicted = Run(), list[str]()
    guarded = GuardedRun(run, evicted.append)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100, is_replaying=True))

    early = guarded.activate(activation(SIGNAL, length=7, seconds=1, size=100))
    guarded.activate(activation(QUERY, length=7, seconds=1, size=100))

    assert run.seen == [INIT, QUERY]
    assert early.HasField("successful")
    assert not early.successful.commands
    assert evicted == ["r"]


def test_a_task_that_overtakes_the_eviction_is_sent_again() -> None:
    run = Run()
    guarded = GuardedRun(run, lambda _: None)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100, is_replaying=True))
    guarded.activate(activation(SIGNAL, length=7, seconds=1, size=100))

    failed = guarded.activate(activation(RESULT, length=9, seconds=2, size=200))
    guarded.activate(activation(EVICTION, length=9, seconds=0, size=0))

    assert failed.HasField("failed")
    assert run.seen == [INIT, EVICTION]


def test_the_result_of_a_local_activity_reaches_the_run_in_the_same_task() -> None:
    run = Run()
    guarded = GuardedRun(run, None)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100))

    guarded.activate(activation(LOCAL_END, length=3, seconds=2, size=100))
    guarded.activate(activation(LOCAL_END, LOCAL_END, QUERY, length=6, seconds=3, size=100))

    assert run.seen == [INIT, RESULT, RESULT, RESULT, QUERY]


@pytest.mark.parametrize("other", [SIGNAL, "do_update", "fire_timer", RESULT])
def test_a_task_that_brings_the_end_of_a_local_activity_and_something_else_is_sent_again(other: str) -> None:
    run = Run()
    guarded = GuardedRun(run, None)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100))

    failed = guarded.activate(activation(other, LOCAL_END, length=8, seconds=2, size=200))

    assert failed.HasField("failed")
    assert run.seen == [INIT]


def test_activities_that_end_together_within_a_task_reach_the_run() -> None:
    run = Run()
    guarded = GuardedRun(run, None)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100))

    guarded.activate(activation(RESULT, LOCAL_END, length=3, seconds=1, size=100))  # the run has cancelled both

    assert run.seen == [INIT, RESULT, RESULT]


def test_the_history_of_a_run_that_was_sent_again_decides() -> None:
    run = Run()
    guarded = GuardedRun(run, None)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100, is_replaying=True))

    guarded.activate(activation(SIGNAL, LOCAL_END, length=11, seconds=3, size=200))

    assert run.seen == [INIT, SIGNAL, RESULT]


def test_a_replay_is_never_kept_from_an_event() -> None:
    run = Run()
    guarded = GuardedRun(run, None)
    guarded.activate(activation(INIT, length=3, seconds=1, size=0, is_replaying=True))

    guarded.activate(activation(SIGNAL, length=7, seconds=1, size=0, is_replaying=True))

    assert run.seen == [INIT, SIGNAL]


def test_a_run_is_started_before_its_first_requests_and_says_so_in_its_history() -> None:
    first, again, earlier = Run(), Run(), Run()
    task = activation(PATCH, INIT, SIGNAL, length=4, seconds=1, size=100)
    replayed = activation(PATCH, INIT, SIGNAL, length=4, seconds=1, size=100, is_replaying=True)

    done = GuardedRun(first, None, in_parts=True).activate(task).successful
    GuardedRun(earlier, None, in_parts=True).activate(replayed)
    replayed.available_internal_flags.extend(done.used_internal_flags)
    said_again = GuardedRun(again, None, in_parts=True).activate(replayed).successful.used_internal_flags

    assert first.activations == again.activations == [[PATCH, INIT], [SIGNAL]]
    assert earlier.activations == [[PATCH, INIT, SIGNAL]]
    assert len(done.commands) == 2
    assert {*done.used_internal_flags} == {*FLAGS, *STARTED_WITH}
    assert not said_again


@pytest.mark.parametrize("flag", [None, *STARTED_WITH])
def test_a_run_has_the_changes_of_the_release_that_has_started_it(flag: int | None) -> None:
    changes, after_restart = set[str](), set[str]()
    start = activation(INIT, length=3, seconds=1, size=100)
    replayed = activation(INIT, length=3, seconds=1, size=100, is_replaying=True)
    replayed.available_internal_flags.extend((*FLAGS, flag) if flag else FLAGS)

    GuardedRun(Run(), None, in_parts=True, changes=changes).activate(start)
    GuardedRun(Run(), None, in_parts=True, changes=after_restart).activate(replayed)

    assert changes == {change for names in STARTED_WITH.values() for change in names}
    assert after_restart == (STARTED_WITH[flag] if flag else set())


@pytest.mark.parametrize("number", [0, 1])
def test_a_start_that_fails_is_a_failure(number: int) -> None:
    guarded = GuardedRun(Run(fails_at=number), None, in_parts=True)
    assert guarded.activate(activation(INIT, SIGNAL, length=4, seconds=1, size=100)).HasField("failed")


UPDATE: Final = "do_update"


def started(run: Run, *, is_replaying: bool = False) -> GuardedRun:
    """A run in parts after its first task."""
    guarded = GuardedRun(run, None, in_parts=True)
    act = activation(INIT, length=3, seconds=1, size=100, is_replaying=is_replaying)
    act.available_internal_flags.extend(FLAGS)
    guarded.activate(act)
    run.activations.clear()
    return guarded


def test_updates_come_after_all_other_events_of_their_task() -> None:
    run = Run()
    started(run).activate(activation(UPDATE, SIGNAL, RESULT, length=8, seconds=2, size=200))
    assert run.activations == [[SIGNAL, RESULT], [UPDATE]]


def test_updates_do_not_reach_an_execution_that_has_ended() -> None:
    run = Run(ends=True)
    started(run).activate(activation(UPDATE, RESULT, length=8, seconds=2, size=200))
    assert run.activations == [[RESULT]]


@pytest.mark.parametrize(
    ("others", "seen"),
    [
        ((SIGNAL,), [[SIGNAL], [UPDATE]]),
        ((RESULT,), [[RESULT], [UPDATE]]),
        ((SIGNAL, RESULT), [[SIGNAL, RESULT]]),
    ],
)
def test_updates_stay_unanswered_if_a_restored_run_cannot_know_their_place(
    others: tuple[str, ...], seen: list[list[str]]
) -> None:
    run = Run()
    guarded = started(run, is_replaying=True)
    guarded.activate(activation(UPDATE, *others, length=8, seconds=2, size=200))
    assert run.activations == seen


def test_a_replay_has_updates_beside_requests_and_results() -> None:
    run = Run()
    guarded = started(run, is_replaying=True)
    guarded.activate(activation(UPDATE, SIGNAL, RESULT, length=8, seconds=2, size=200, is_replaying=True))
    assert run.activations == [[SIGNAL, RESULT], [UPDATE]]


def test_a_reset_brings_updates_beside_requests_and_results() -> None:
    run = Run()
    guarded = started(run, is_replaying=True)
    guarded.activate(activation(RESET, UPDATE, SIGNAL, RESULT, length=8, seconds=2, size=200))
    assert run.activations == [[RESET], [SIGNAL, RESULT], [UPDATE]]


def test_a_reset_comes_before_the_requests_that_the_server_repeats_with_the_first_task() -> None:
    run = Run()
    guarded = GuardedRun(run, None, in_parts=True)
    guarded.activate(activation(INIT, SIGNAL, RESET, UPDATE, length=4, seconds=1, size=100))
    assert run.activations == [[INIT], [RESET], [SIGNAL], [UPDATE]]


def test_a_workflow_of_your_own_starts_as_the_sdk_starts_it() -> None:
    run = Run()
    done = GuardedRun(run, None).activate(activation(INIT, SIGNAL, length=4, seconds=1, size=100))
    assert run.activations == [[INIT, SIGNAL]]
    assert not done.successful.used_internal_flags


ACTIVITY: Final = ("schedule_activity",)
ATTRIBUTES: Final = ("upsert_workflow_search_attributes",)
ELIDED: Final = ("start_timer", "cancel_timer")


def after_a_query(run: Run, *, query: str = QUERY_ALONE, evict: Any = None) -> GuardedRun:
    """A run that was restored and has executed a task, which the query may have brought."""
    guarded = GuardedRun(run, evict)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100, is_replaying=True))
    guarded.activate(activation(SIGNAL, length=8, seconds=2, size=200))
    guarded.activate(activation(query, length=8, seconds=2, size=200))
    return guarded


OF_COMMANDS: Final = [
    (ACTIVITY, 1),
    (ATTRIBUTES, 1),
    ((*ATTRIBUTES, *ELIDED), 1),
    ((*ATTRIBUTES, *ACTIVITY, "start_timer"), 3),
    (("start_child_workflow_execution", "modify_workflow_properties", "cancel_timer"), 2),
]
"""Commands, and how many events they add at least."""
OF_EVENTS: Final = [
    ((SIGNAL,), 1),
    ((SIGNAL, UPDATE), 1),
    ((RESULT,), 2),
    ((SIGNAL, FAILURE), 3),
    ((TIMEOUT,), 1),
    ((LOCAL_END,), 0),
    (("resolve_nexus_operation_start", "resolve_nexus_operation"), 1),
]
"""What comes with a task, and how many events it has in the history."""


@pytest.mark.parametrize(("events", "of_events"), OF_EVENTS)
@pytest.mark.parametrize(("commands", "of_commands"), OF_COMMANDS)
def test_a_task_that_came_with_a_query_and_was_not_completed_is_sent_again(
    events: tuple[str, ...], of_events: int, commands: tuple[str, ...], of_commands: int
) -> None:
    run, other = Run(commands=commands), Run(commands=commands)
    times_out_scheduled_started = 3

    failed = after_a_query(run).activate(
        activation(*events, length=8 + times_out_scheduled_started + of_events, seconds=9, size=300)
    )
    completed = after_a_query(other).activate(
        activation(*events, length=8 + times_out_scheduled_started + of_events + of_commands, seconds=9, size=300)
    )

    assert failed.HasField("failed")
    assert run.activations == [[INIT], [SIGNAL], [QUERY]]
    assert completed.HasField("successful")
    assert len(other.activations) == 4


def test_a_task_that_no_query_follows_is_not_doubted() -> None:
    run = Run(commands=ACTIVITY)
    done = after_a_query(run, query=QUERY).activate(activation(SIGNAL, length=12, seconds=9, size=300))
    assert done.HasField("successful")


@pytest.mark.parametrize("commands", [(), ELIDED, ("schedule_activity", "request_cancel_activity")])
def test_a_restored_run_is_replayed_if_the_next_task_could_not_show_it(commands: tuple[str, ...]) -> None:
    run, evicted = Run(commands=commands), list[str]()
    guarded = after_a_query(run, evict=evicted.append)

    failed = guarded.activate(activation(SIGNAL, length=12, seconds=9, size=300))

    assert evicted == ["r"]
    assert failed.HasField("failed")


@pytest.mark.parametrize("is_replaying", [True, False])
def test_a_worker_s_own_task_is_not_doubted(is_replaying: bool) -> None:
    run, evicted = Run(commands=()), list[str]()
    guarded = GuardedRun(run, evicted.append)
    guarded.activate(activation(INIT, length=3, seconds=1, size=100, is_replaying=is_replaying))
    if is_replaying:
        guarded.activate(activation(SIGNAL, UPDATE, length=8, seconds=2, size=200))
    guarded.activate(activation(QUERY_ALONE, length=8, seconds=2, size=200))

    assert evicted == []


def test_a_run_that_has_gone_on_here_is_not_replayed_because_of_a_query() -> None:
    run, evicted = Run(commands=()), list[str]()
    guarded = GuardedRun(run, evicted.append)
    for task in (1, 2, 3):
        guarded.activate(activation(SIGNAL, length=task * 4, seconds=task, size=task * 100))
    guarded.activate(activation(QUERY_ALONE, length=12, seconds=3, size=300))
    guarded.activate(activation(SIGNAL, length=16, seconds=4, size=400))

    assert evicted == []
    assert run.seen == [SIGNAL, SIGNAL, SIGNAL, QUERY, SIGNAL]
