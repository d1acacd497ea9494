"""The `AgentRun` workflow, which executes one agent run.

The domain chooses the next action, and the workflow performs it in activities.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from typing import Any, Protocol, TypeVar, assert_never

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception
from temporalio.workflow import ActivityHandle, ContinueAsNewVersioningBehavior

from loom.activities.failures import fail, failure_of
from loom.domain.core.messages import JsonObject, Message
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tool_calls import OpenCall
from loom.domain.machine.activity_requests import origin_of, workspace_of
from loom.domain.machine.checkout_step import change_told, is_wait_over, pushing_change, storing_change
from loom.domain.machine.delegation import child_start
from loom.domain.machine.limits import hard_end
from loom.domain.machine.run_hooks import next_last_hook
from loom.domain.machine.tool_results import local_calls, without_local_calls
from loom.domain.machine.transitions import closed, evolve, ignored, next_action
from loom.domain.run.actions import (
    Action,
    AskPerson,
    AwaitAdmission,
    AwaitBudget,
    AwaitMessage,
    AwaitPerson,
    AwaitResume,
    Backoff,
    BeginTurn,
    CallModel,
    CompressContext,
    EvaluateAnswer,
    Finish,
    Prepare,
    PrepareCalls,
    PrepareWorkspace,
    RunChildren,
    RunHook,
    RunTools,
    SampleModel,
    StoreParts,
)
from loom.domain.run.activity_payloads import PublishRequest, RunWorkspace
from loom.domain.run.chat import MessageState
from loom.domain.run.events import (
    AbortRequested,
    AsksExpired,
    BackoffEnded,
    Event,
    MessageAnswered,
    NoticesPublished,
    ReturnStopped,
    RunReopened,
    RunReset,
    TimeRanOut,
    ToolsReturned,
    TurnBegan,
    WaitEnded,
)
from loom.domain.run.notifications import announced, end_of, unannounced
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import Outcome, RunState, result_of, waiting_on, with_end_notice, with_not_run_told
from loom.domain.run.status import status_view
from loom.domain.tree.events import ChildrenBegan, TreeSignalSent
from loom.domain.tree.signals import LOST, PARENT
from loom.workflows import activity_dispatch as scheduling
from loom.workflows import options
from loom.workflows.activity_dispatch import ScheduledActivity, turn_group
from loom.workflows.changes import (
    CALLS_NOT_RUN,
    CHILDREN_NOT_BEGUN,
    COUNTED_REQUESTS,
    DETACHED_CHILDREN,
    NOTICES_BY_ACTIVITIES,
    ONE_TIMER,
    UPGRADE_ON_REQUEST,
    has_change,
)
from loom.workflows.child_runs import Children, Parent, child_name, send_tree_signal
from loom.workflows.long_waits import waiting
from loom.workflows.signal_handlers import SteeredRun, register_handlers
from loom.workflows.signed_requests import signed_start
from loom.workflows.validation import initial_state
from loom.workflows.visibility import attribute_updates, attributes_of, show_details

_T = TypeVar("_T")


class RunObserver(Protocol):
    """Observes what happens in a run, including its replays. The run doesn't depend on it."""

    def advanced(self, before: RunState, event: Event, after: RunState) -> None:
        """An event has led from one state to the next."""

    def ended(self, result: RunResult) -> None:
        """The run has ended."""


@workflow.defn(name="AgentRun")
class AgentRun:
    """One agent run; its id is the workflow id."""

    observer: RunObserver | None = None
    gets_events_in_parts = True
    """See `loom.workflows.event_order`."""

    @workflow.init
    def __init__(self, request: object = None, *carried: object) -> None:
        self._request = request
        self._signed_start = signed_start([request, *carried]) if workflow.info().headers else None
        self._state = without_local_calls(initial_state(request, carried))
        self._shown: dict[str, str | float] = {}
        self._updates = self._requests = 0
        self._is_notifying = self._was_reset = False
        self._upgrade_requested = False
        self._rotation_due = False
        self._is_resting = isinstance(next_action(self._state), AwaitMessage)
        self._looked_at = workflow.now()
        self._children = Children(
            Parent(
                advance=self._advance,
                current=lambda: self._state,
                publish_notices=self._publish_notices,
                is_rotation_due=lambda: self._rotation_due,
                rotate=self._rotate_if_due,
            )
        )
        workflow.register_random_seed_callback(self._seed_changed)
        show_details(lambda: self._state)
        register_handlers(
            SteeredRun(
                current=lambda: self._state,
                advance=self._advance,
                count_signal=self._count_request,
                count_update=self._count_update,
            )
        )

    @workflow.run
    async def run(self, request: object = None, *carried: object) -> RunResult:
        """Perform actions one at a time until the run is finished."""
        background = (
            self._notice_resets(),
            self._send_tree_signals(),
            self._watch_time(),
            self._notify(),
        )
        tasks = [asyncio.create_task(each) for each in background]
        if self._state.tree.children:
            self._children.follow()
        while (result := await self._result()) is None:
            pass  # a person has retried the run, or it is a chat that has answered a message
        if self.observer is not None:
            self.observer.ended(result)
        if result.status is RunStatus.FAILED:
            fail(result)
        for task in tasks:
            task.cancel()
        return result

    async def _result(self) -> RunResult | None:
        """Perform actions until the run has an outcome. Returns its result, or None if it goes on."""
        while not isinstance(action := next_action(self._state), Finish):
            self._is_resting = self._is_resting and isinstance(action, AwaitMessage)
            try:
                self._advance(await self._perform(action))
                await self._rotate_if_due()
            except asyncio.CancelledError:
                if workflow.cancellation_reason() is None:  # the run leaves its worker's cache
                    raise
                self._advance(AbortRequested(reason="cancelled through Temporal", at=workflow.now()))
        return await self._finished(action.outcome)

    def _is_reopened(self) -> bool:
        """Whether the run goes on after its end, because a person asked for it."""
        if self._state.reopening is not None:
            self._advance(RunReopened(at=workflow.now()))
        return self._state.outcome is None

    @workflow.query
    def status(self, *_: object) -> JsonObject:
        """Return the run's status and the events that it is waiting for."""
        return status_view(self._state)

    @workflow.query
    def answer(self, message_id: object = None, *_: object) -> MessageState:
        """Return what has become of a chat's message, and the answer to it."""
        chat = self._state.chat
        return MessageState() if chat is None else chat.state_of(str(message_id))

    @workflow.query
    def workspace(self, *_: object) -> RunWorkspace | None:
        """Return where the run works, and the rules for its files. None if it isn't prepared yet."""
        return workspace_of(self._state)

    @workflow.query
    def transcript(self, *_: object) -> tuple[Message, ...]:
        """Return the messages in the current window."""
        return self._state.transcript.messages

    @workflow.signal
    def upgrade(self, *_: object) -> None:
        """Continue on the current version of the worker's deployment after this action, or at once if it is a wait."""
        self._upgrade_requested = True
        if self._state.spec is not None:  # only the first execution knows the start's signature
            is_due = has_change(UPGRADE_ON_REQUEST)
            self._rotation_due |= is_due or workflow.info().is_target_worker_deployment_version_changed()

    @property
    def is_signed(self) -> bool:
        """Whether the owner of the worker's key started this run. Its requests to other runs are then signed."""
        return self._state.signature_checks.signed

    @property
    def state(self) -> RunState:
        """The run's whole state, which continue-as-new hands on."""
        return self._state

    def _advance(self, event: Event) -> None:
        before, self._state = self._state, evolve(self._state, event)
        if self._state is before and (why := ignored(before, event)) is not None:
            workflow.logger.info("event ignored: %s", why)
        self._tell_not_run()
        if self.observer is not None:
            self.observer.advanced(before, event, self._state)
        wanted = attributes_of(self._state)
        if self._state.spec is not None and wanted != self._shown:
            changed = {name: value for name, value in wanted.items() if self._shown.get(name) != value}
            self._shown = wanted
            workflow.upsert_search_attributes(attribute_updates(changed))

    def _tell_not_run(self) -> None:
        if self._state.notices.not_run:  # before 0.4.0, the stream wasn't told of these calls
            self._state = with_not_run_told(self._state, told=has_change(CALLS_NOT_RUN))

    def _count_update(self) -> None:
        self._updates += 1
        self._rotation_due |= self._updates >= options.MAX_UPDATES
        self._count_request()

    def _count_request(self) -> None:
        """Count a signal or an update. While a run waits, nothing else shows reliably how long its history is."""
        self._requests += 1
        events, spec = self._requests * options.EVENTS_OF_REQUEST, self._state.spec
        if spec is not None and events >= spec.rotate_after_events and has_change(COUNTED_REQUESTS):
            self._rotation_due = True

    def _seed_changed(self, _seed: int) -> None:
        self._was_reset = True  # only a reset changes the seed of an execution

    async def _notice_resets(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self._was_reset)
            self._was_reset = False
            if self._state.spec is None or self._state.signature_checks.is_renewed_by_resets:
                self._advance(RunReset(at=workflow.now()))
                # The SDK joins a task without a command with the next one, and the time would differ in a replay.
                recorded = workflow.sleep(options.SHORTEST_WAIT, summary="so that the time of the reset is recorded")
                asyncio.create_task(recorded)  # noqa: RUF006 - nothing waits for it

    async def _send_tree_signals(self) -> None:
        """Send queued signals to other runs in the tree, one at a time."""
        while True:
            await workflow.wait_condition(lambda: bool(self._state.tree.unsent))
            signal = self._state.tree.unsent[0]
            has_arrived = await send_tree_signal(signal)
            self._advance(TreeSignalSent())
            if not has_arrived and self._state.tree.depends_on(signal.to):
                self._advance(AbortRequested(reason=LOST, by=PARENT, at=workflow.now()))

    async def _notify(self) -> None:
        """Tell people what waits for them, one at a time, if the worker that prepared the run has somebody to tell."""
        await workflow.wait_condition(lambda: self._state.environment.notify is not None)
        while True:
            await workflow.wait_condition(lambda: bool(unannounced(self._state, workflow.now())))
            waiting = unannounced(self._state, workflow.now())
            if not waiting:  # what has woken this task and what has ended the wait came together
                continue
            self._is_notifying, notification = True, waiting[0]
            try:
                taken = await scheduling.notify(self._state, notification)
            finally:  # whatever it is, the run must be able to end
                self._is_notifying = False
            if taken:
                self._state = announced(self._state, notification, workflow.now())
            if not taken:
                await workflow.sleep(options.NOTIFY_AGAIN, summary="until people are notified again")

    async def _drained(self) -> None:
        """Wait until no handler is running, no signal is queued, and nobody is being notified. Until then, the workflow
        must not complete.
        """
        await workflow.wait_condition(
            lambda: workflow.all_handlers_finished() and not self._state.tree.unsent and not self._is_notifying
        )

    async def _watch_time(self) -> None:
        """End the run at its deadline, regardless of its current state."""
        past: datetime | None = None
        while True:
            await workflow.wait_condition(lambda: (end := self._end_of_time()) is not None and end != past)  # noqa: B023 - awaited in this round
            past = end = self._end_of_time()
            if end is not None and (has_change(ONE_TIMER) or end > workflow.now()):
                await self._sleep_until(end, "the end of the run's time")
            if end == self._end_of_time():  # a retry may have moved it
                self._advance(TimeRanOut(at=workflow.now() if end is None else _reached(end)))

    def _end_of_time(self) -> datetime | None:
        return None if self._state.spec is None else hard_end(self._state)

    async def _perform(self, action: Action) -> Event:  # noqa: C901, PLR0912 - one case an action
        match action:
            case Prepare():
                return await self._event(scheduling.prepare(self._state, self._signed_start))
            case PrepareWorkspace():
                return await self._event(scheduling.prepare_workspace(self._state))
            case RunHook(step=step):
                return await self._event(scheduling.run_hook(self._state, step))
            case AwaitAdmission():
                return await self._event(scheduling.await_admission(self._state))
            case BeginTurn():
                return TurnBegan(at=workflow.now())
            case StoreParts():
                return await self._event(scheduling.store_parts(self._state))
            case CallModel():
                return await self._event(scheduling.call_model(self._state))
            case CompressContext():
                return await self._event(scheduling.compress(self._state))
            case EvaluateAnswer():
                return await self._event(scheduling.evaluate(self._state))
            case PrepareCalls(calls=calls):
                return await self._event(scheduling.plan_calls(self._state, calls))
            case RunTools(calls=calls):
                return await self._run_tools(calls)
            case SampleModel(call_id=call_id):
                return await self._event(scheduling.sample(self._state, call_id))
            case RunChildren(calls=calls):
                return await self._run_children(calls)
            case AskPerson(until=until):
                is_over = await self._wait(action, until)
                return AsksExpired(at=_reached(until)) if is_over and until is not None else WaitEnded()
            case Backoff(until=until):
                return BackoffEnded() if await self._wait(action, until) else WaitEnded()
            case AwaitResume() | AwaitPerson() | AwaitBudget():
                await self._wait(action, None)
                return WaitEnded()
            case AwaitMessage(since=since):
                # An execution that has done nothing else is already as short as it can be.
                if await self._wait(action, None if self._is_resting else since + options.CHAT_IDLE):
                    self._rotation_due = True
                return WaitEnded()
            case Finish():
                return WaitEnded()
            case _:
                assert_never(action)

    async def _run_tools(self, calls: tuple[OpenCall, ...]) -> Event:
        state = self._state
        notices, local = len(state.notices.pending), local_calls(state, calls)
        with turn_group(state):
            handles = [
                scheduling.read_locally(state, call)
                if call.call.id in local
                else scheduling.run_tool(state, call, with_notices=number == 0)
                for number, call in enumerate(calls)
            ]
        outcomes = await asyncio.gather(*(self._outcome(handle) for handle in handles))
        if notices:
            self._advance(NoticesPublished(count=notices))
        by_call = {call.call.id: came for call, came in zip(calls, outcomes, strict=True) if came is not None}
        return ToolsReturned(outcomes=by_call, local=local, at=workflow.now())

    async def _run_children(self, calls: tuple[OpenCall, ...]) -> Event:
        begun = {child.call_id for child in self._state.tree.running}  # by the execution before this one
        new = [call.call.id for call in calls if call.call.id not in begun]
        if new:
            names = {call_id: child_name(self._state.turn, number) for number, call_id in enumerate(new, 1)}
            # Before 0.4.0, the server ended children that an execution left behind, so it waited for them.
            detached = has_change(DETACHED_CHILDREN)
            told = has_change(CHILDREN_NOT_BEGUN)
            self._advance(ChildrenBegan(names=names, detached=detached, told=told, at=workflow.now()))
            await self._publish_notices()
        if self._state.outcome is None:
            with turn_group(self._state):
                waiting = [child for child in self._state.tree.running if not child.started]
                self._children.start([child_start(self._state, child) for child in waiting])
                await self._children.ended()
        return WaitEnded()

    async def _event(self, started: ScheduledActivity[_T]) -> Event:
        """Return the event for the end of an activity. If it succeeded, it has published the notices in its request."""
        outcome = await self._outcome(started.handle)
        if outcome is None:
            return WaitEnded()
        if isinstance(outcome, Failure):
            return started.on_failure(outcome)
        if started.notices:
            self._advance(NoticesPublished(count=started.notices))
        return started.on_result(outcome)

    async def _outcome(self, handle: ActivityHandle[_T]) -> _T | Failure | None:
        """Return an activity's result or failure. Returns None if it was cancelled because the run has an outcome."""
        try:
            await workflow.wait_condition(lambda: handle.done() or self._state.outcome is not None)
        except asyncio.CancelledError:
            if workflow.cancellation_reason() is None:  # the run leaves its worker's cache
                raise
            self._advance(AbortRequested(reason="cancelled through Temporal", at=workflow.now()))
        if not handle.done():
            handle.cancel()
        try:
            return await handle
        except FailureError as error:  # in a replay, a local activity's time-out isn't wrapped in an ActivityError
            return None if is_cancelled_exception(error) else failure_of(error)

    async def _wait(self, action: Action, until: datetime | None) -> bool:
        """Wait until the run's next action changes. Returns True if the time `until` is reached first."""

        def moved_on() -> bool:
            return next_action(self._state) != action or self._rotation_due

        if moved_on():
            return False
        if until is not None and not has_change(ONE_TIMER):
            return await self._wait_with_timers(moved_on, until)
        timer = None if until is None else asyncio.create_task(self._sleep_until(until, self._waiting()))

        def is_over() -> bool:
            return moved_on() or (timer is not None and timer.done())

        try:
            while not is_over():
                await self._publish_notices()
                with waiting() if _is_long(until) else nullcontext():
                    await workflow.wait_condition(lambda: is_over() or bool(self._state.notices.pending))
        finally:
            if timer is not None:
                timer.cancel()
        return not moved_on()

    async def _wait_with_timers(self, moved_on: Callable[[], bool], until: datetime) -> bool:
        """Wait as before 0.4.0, when each notice began another timer."""
        while not moved_on():
            await self._publish_notices()
            left = until - workflow.now()
            if left.total_seconds() <= 0:
                return True
            try:
                with waiting() if _is_long(until) else nullcontext():
                    await workflow.wait_condition(
                        lambda: moved_on() or bool(self._state.notices.pending),
                        timeout=left,
                        timeout_summary=self._waiting(),
                    )
            except TimeoutError:
                return True
        return False

    async def _sleep_until(self, until: datetime, summary: str) -> None:
        """Start a timer, even if the time has come: whether there is one must not depend on the clock."""
        left = (until - workflow.now()).total_seconds()
        await workflow.sleep(max(left, options.SHORTEST_TIMER), summary=summary)

    def _waiting(self) -> str:
        return f"t{self._state.turn} · waiting on {waiting_on(self._state)}"[:100]

    async def _publish_notices(self, *, at_end: bool = False) -> None:
        """Publish what no other activity will publish soon.

        While a run waits, this is no local activity: signals, updates and queries may come at any time, and the SDK may
        hand them to a replay in another order than before if a local activity runs.
        """
        notices = self._state.notices.pending
        if not notices:
            return
        request = PublishRequest(origin=origin_of(self._state), turn=self._state.turn, notices=notices)
        is_local = at_end or not has_change(NOTICES_BY_ACTIVITIES)
        published = await scheduling.publish(self._state, request, local=is_local)
        self._advance(NoticesPublished(count=len(notices), notify=published.notify if published else None))

    def _should_rotate(self) -> bool:
        info, spec = workflow.info(), self._state.spec
        began, self._looked_at = self._looked_at, workflow.now()
        if info.is_continue_as_new_suggested():
            return True
        if spec is None:  # only the first execution knows the start's signature
            return False
        has_new_version = info.is_target_worker_deployment_version_changed()
        return info.get_current_history_length() >= spec.rotate_after_events or (
            has_new_version and (self._upgrade_requested or self._looked_at - began >= options.LONG_ACTION)
        )

    def _starts_activity(self) -> bool:
        """Whether the run now starts an activity that isn't local.

        Only then do replays see this workflow task as it is, and its clock and the length of the history may be looked
        at: a task that starts nothing, or only a local activity, may be joined with the next one.
        """
        match next_action(self._state):
            case RunTools(calls=calls):
                return not local_calls(self._state, calls)
            case StoreParts() | CallModel() | CompressContext() | EvaluateAnswer() | PrepareCalls() | SampleModel():
                return True
            case _:
                return False

    async def _rotate_if_due(self) -> None:
        """Continue as new with the full state. Clients use the run's id, so they aren't affected.

        With worker versioning, the new execution is pinned to the version that is current now.
        """
        if self._starts_activity():
            self._rotation_due |= self._should_rotate()
        if not self._rotation_due:
            return
        await self._drained()
        if isinstance(next_action(self._state), Finish):
            return
        workflow.continue_as_new(
            args=[self._request, self._state],
            initial_versioning_behavior=ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
        )

    async def _finished(self, outcome: Outcome) -> RunResult | None:
        """Return the result of the run, or None if it goes on. A run that is cancelled after it has an outcome still
        finishes its work, but doesn't wait until its change is returned.
        """
        finishing = asyncio.create_task(self._finish(outcome))
        while not finishing.done():
            try:
                await workflow.wait_condition(finishing.done)
            except asyncio.CancelledError:
                if self._state.returning is not None and workflow.cancellation_reason() is not None:
                    self._advance(AbortRequested(reason="cancelled through Temporal", at=workflow.now()))
        return finishing.result()

    async def _finish(self, outcome: Outcome) -> RunResult | None:
        if self._state.tree.children:
            await self._children.ended()
        if self._state.is_answer:
            self._advance(MessageAnswered(at=workflow.now()))
            return None
        if not workflow.all_handlers_finished():  # perhaps the signature of a retry is being checked
            await workflow.wait_condition(workflow.all_handlers_finished)
        if self._is_reopened():
            return None
        self._state = closed(self._state, workflow.now())
        self._tell_not_run()
        if not await self._is_wound_up():
            return None
        outcome = self._state.outcome or outcome
        result = result_of(self._state, outcome)
        await self._tell_end(result)
        if self._state.admission:
            await scheduling.leave_tenant(self._state)
        await self._drained()
        return None if self._is_reopened() else result

    async def _is_wound_up(self) -> bool:
        """Store the change, run the last hooks, and push the change. Return False if the run goes on instead."""
        self._state = storing_change(self._state)
        await self._return_change(scheduling.store_change)
        if self._state.outcome is None:
            return False
        if self._state.hooks_left:
            await self._run_last_hooks()
            if self._is_reopened():
                return False
        self._state = pushing_change(self._state)
        await self._return_change(scheduling.push_change)
        self._state = change_told(self._state, workflow.now())
        return True

    async def _tell_end(self, result: RunResult) -> None:
        """Tell the stream how the run ends and, if its worker has somebody to notify, people."""
        self._state = with_end_notice(self._state, result, workflow.now())
        await self._publish_notices(at_end=True)
        notifies = self._state.environment.notify is not None
        if notifies and (end := end_of(self._state, result, workflow.now())) is not None:
            tries = options.END_TRIES
            while not await scheduling.notify(self._state, end) and (tries := tries - 1):
                await workflow.sleep(options.END_AGAIN, summary="until people are notified again")

    async def _return_change(self, step: Callable[[RunState], ScheduledActivity[Any]]) -> None:
        """Perform a step of returning the change to the run's repository, if one is due, until it ends or a person ends
        the wait. A failure doesn't change how the run ends.
        """
        while self._state.returning is not None:
            started = step(self._state)
            await workflow.wait_condition(lambda: started.handle.done() or is_wait_over(self._state))  # noqa: B023 - awaited in this round
            if not started.handle.done():
                started.handle.cancel()
            try:
                outcome = await started.handle
            except ActivityError as error:
                is_stopped = is_wait_over(self._state)
                failed = ReturnStopped(at=workflow.now()) if is_stopped else started.on_failure(failure_of(error))
                self._advance(failed)
            else:
                self._advance(started.on_result(outcome))
            if self._is_reopened():
                return

    async def _run_last_hooks(self) -> None:
        """Run the hooks that follow the end of the run. These hooks can't be cancelled."""
        while (step := next_last_hook(self._state)) is not None:
            started = scheduling.run_hook(self._state, step)
            try:
                answer = await started.handle
            except ActivityError as error:
                self._advance(started.on_failure(failure_of(error)))
            else:
                self._advance(started.on_result(answer))
                self._advance(NoticesPublished(count=started.notices))


def _reached(time: datetime) -> datetime:
    """Return the time that a timer has reached. Before 0.4.0, this was the clock's."""
    return time if has_change(ONE_TIMER) else workflow.now()


def _is_long(until: datetime | None) -> bool:
    """Whether a run that waits until this time may leave its worker's cache."""
    return until is None or until - workflow.now() >= options.LONG_WAIT
