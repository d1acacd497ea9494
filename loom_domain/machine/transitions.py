"""A run's state machine: two pure functions, `next_action(state)` and `evolve(state, event)`, and a transition table.

For each event, `TABLE` lists the phases in which the event is valid, the phases that can follow, and the function that
computes the next state. `docs/machine.md` shows the table as a diagram. To regenerate the diagram, run
`python -m bench.machine_diagram --write`.

Events can occur at any time: activities end, and people and related runs send signals. An event that isn't valid in the
current state leaves the state unchanged, and `ignored` returns the reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, assert_never

from loom.domain.core.frozen import replace
from loom.domain.core.requests import RunRequest, RunStatus
from loom.domain.core.signatures import microseconds
from loom.domain.core.tasks import Action as TaskAction
from loom.domain.machine.chatting import message_answered
from loom.domain.machine.checkout_step import (
    awaits_clone,
    change_pushed,
    change_stored,
    is_pushing,
    is_storing,
    is_wait_over,
    return_stopped,
    workspace_prepared,
)
from loom.domain.machine.compression_step import compression_failed, context_compressed
from loom.domain.machine.delegation import child_ended, children_began
from loom.domain.machine.evaluation_step import answer_evaluated, evaluation_failed
from loom.domain.machine.input_step import model_sampled, sampling_failed
from loom.domain.machine.limits import hard_end
from loom.domain.machine.model_replies import answered, model_replied
from loom.domain.machine.model_retry import model_failed
from loom.domain.machine.parking import attempted_now
from loom.domain.machine.proven_approvals import without_grants
from loom.domain.machine.reopening import reopened
from loom.domain.machine.run_hooks import (
    due_hook,
    hook_ended,
    next_to_start,
    start_asked_again,
    start_decided,
    with_last_hooks,
)
from loom.domain.machine.steering import asks_expired, steered
from loom.domain.machine.tool_results import (
    calls_prepared,
    next_for_calls,
    tools_returned,
    with_asks_renewed,
    with_calls_ended,
)
from loom.domain.machine.tree_sync import ancestry_changed, sync_relatives
from loom.domain.machine.turn_start import (
    last_turn,
    next_turn,
    parts_stored,
    ready,
    run_prepared,
    stopped_at_limit,
    without_late_critique,
)
from loom.domain.machine.wrap_up import budget_answered, budget_requested, time_ran_out
from loom.domain.run.actions import (
    Action,
    AwaitAdmission,
    AwaitBudget,
    AwaitMessage,
    AwaitResume,
    Backoff,
    BeginTurn,
    CallModel,
    CompressContext,
    EvaluateAnswer,
    Finish,
    Prepare,
    PrepareWorkspace,
    StoreParts,
)
from loom.domain.run.chat import begun_with
from loom.domain.run.events import (
    AbortRequested,
    AnswerEvaluated,
    Approved,
    AsksExpired,
    BackoffEnded,
    CallsPrepared,
    ChangePushed,
    ChangeStored,
    CompressionFailed,
    ContextCompressed,
    Denied,
    EvaluationFailed,
    Event,
    HookFailed,
    HookReturned,
    MessageAnswered,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ModelSampled,
    NoticesPublished,
    PartsStored,
    PauseRequested,
    PermissionsSet,
    ResumeRequested,
    RetryRequested,
    ReturnStopped,
    RunAdmitted,
    RunPrepared,
    RunRefused,
    RunReopened,
    RunReset,
    SamplingFailed,
    SignalIgnored,
    SignatureUsed,
    TimeRanOut,
    ToolsReturned,
    TurnBegan,
    WaitEnded,
    WorkspacePrepared,
)
from loom.domain.run.state import Outcome, Phase, RunState, ended, note
from loom.domain.tree.events import (
    AncestryChanged,
    BudgetGranted,
    BudgetRequested,
    ChildEnded,
    ChildrenBegan,
    ChildReported,
    ChildStarted,
    TreeEvent,
    TreeSignalSent,
)
from loom.domain.tree.lineage import Lineage
from loom.domain.tree.signals import with_report, without_first_signal
from loom.domain.tree.tree import Tree, child_of, with_child

ENDED: Final = "ended"
Place: TypeAlias = Phase | Literal["ended"]
"""A run's place in the state machine, which is a phase or, once the run has an outcome, the end."""


def start(run_id: str, request: RunRequest, at: datetime, lineage: Lineage | None = None) -> RunState:
    """Return the initial state of a run. `lineage` is set if the run is a child of another run."""
    chat = begun_with(request.task, request.message_id, at) if request.chat else None
    return RunState(run_id=run_id, request=request, began_at=at, tree=Tree(lineage=lineage), chat=chat)


def place(state: RunState) -> Place:
    """Return the run's place in the state machine."""
    return ENDED if state.outcome is not None else state.phase


def next_action(state: RunState) -> Action:
    """Return the run's next action."""
    if state.outcome is not None:
        return Finish(outcome=state.outcome)
    if state.hold is not None:
        return AwaitResume()
    if any(request.run_id == state.run_id for request in state.tree.requests):
        return AwaitBudget()
    if state.admission == "waiting":
        return AwaitAdmission()
    if state.chat is not None and state.chat.is_waiting:
        return AwaitMessage(since=state.chat.since)
    return _next_in_phase(state)


def _next_in_phase(state: RunState) -> Action:
    match state.phase:
        case Phase.STARTING:
            if state.spec is None:
                return Prepare()
            return PrepareWorkspace() if awaits_clone(state) else next_to_start(state)
        case Phase.READY:
            return BeginTurn()
        case Phase.THINKING:
            return _next_for_model(state)
        case Phase.ACTING:
            return next_for_calls(state)
        case Phase.EVALUATING:
            return BeginTurn() if state.inbox else EvaluateAnswer()
        case _:
            assert_never(state.phase)


def _next_for_model(state: RunState) -> Action:
    if state.retry_at is not None:
        return Backoff(until=state.retry_at)
    if state.incoming.due:
        return StoreParts()
    return CompressContext() if state.window.due else CallModel()


def evolve(state: RunState, event: Event) -> RunState:
    """Return the run's next state after `event` has occurred. Resulting signals to the run's parent and children are
    queued.

    Returns the same object if the event is not valid.
    """
    if ignored(state, event) is not None:
        return state
    state = TABLE[type(event)].change(state, event)
    if state.phase is Phase.STARTING and state.calls.open and not isinstance(event, TreeEvent):
        state = start_decided(state)
    if state.tree.lineage is not None or state.tree.children:
        state = sync_relatives(state)
    return state


def ignored(state: RunState, event: Event) -> str | None:
    """Return the reason that the event is not valid in the run's current state, or None if it is valid."""
    transition, where = TABLE[type(event)], place(state)
    if where not in transition.to:
        return f"{type(event).__name__} does not fit a run that is {where}"
    if not transition.fits(state, event):
        return f"{type(event).__name__} does not fit: {transition.otherwise}"
    return None


def closed(state: RunState, at: datetime) -> RunState:
    """Return the state of a finished run. Every call has a result that describes its known outcome."""
    if state.spec is not None and (state.spec.hooks or state.phase is Phase.STARTING):
        state = with_last_hooks(state)
    return with_calls_ended(
        state, at, "not finished: the run ended before. If this had begun, it may have taken effect in part."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """The effect of an event on a run, and the conditions under which the event is valid."""

    to: Mapping[Place, tuple[Place, ...]]
    """The places in which the event is valid, each with all places that can follow."""
    change: Callable[[RunState, Any], RunState]
    fits: Callable[[RunState, Any], bool] = lambda _state, _event: True
    """An additional condition for the event to be valid."""
    otherwise: str = ""
    """The text for a message that explains why the condition is not met."""


S, R, T, A, E = Phase.STARTING, Phase.READY, Phase.THINKING, Phase.ACTING, Phase.EVALUATING

STAYS: Final[Mapping[Place, tuple[Place, ...]]] = {where: (where,) for where in (*Phase, ENDED)}
ENDS: Final[Mapping[Place, tuple[Place, ...]]] = dict.fromkeys(Phase, (ENDED,))
LAST_RESULT: Final[Mapping[Place, tuple[Place, ...]]] = {**STAYS, A: (A, R)}
"""The places that can follow `acting` after an event that may provide the last result of the turn."""


def _turn_began(state: RunState, event: TurnBegan) -> RunState:
    if state.answer.held is not None and not state.inbox:
        return answered(state, state.answer.held, event.at)
    if state.answer.wrap_up is None:
        state = stopped_at_limit(state, event.at)
    if not _is_turn_due(state):
        return state
    state = without_late_critique(state)
    wrap_up = state.answer.wrap_up
    return next_turn(state, event.at) if wrap_up is None else last_turn(state, wrap_up)


def _is_turn_due(state: RunState, _event: TurnBegan | None = None) -> bool:
    return isinstance(next_action(state), BeginTurn)


def _refused(state: RunState, event: RunRefused) -> RunState:
    return ended(state, Outcome(status=RunStatus.FAILED, error=event.error))


def _signal_ignored(state: RunState, event: SignalIgnored) -> RunState:
    return note(state, TaskAction.IGNORED, event.at, signal=event.signal, why=event.why)


def _signature_used(state: RunState, event: SignatureUsed) -> RunState:
    return replace(state, signature_checks=state.signature_checks.with_used(event.fingerprint))


def _reset(state: RunState, event: RunReset) -> RunState:
    checks = replace(state.signature_checks, reset_at=microseconds(event.at))
    state = replace(state, signature_checks=checks)
    if not checks.asks_renewed_at:
        return state
    if checks.proofs:
        state = without_grants(state)
    is_starting = state.phase is Phase.STARTING
    return start_asked_again(state, event.at) if is_starting and state.asks else with_asks_renewed(state)


def _admitted(state: RunState, _event: RunAdmitted) -> RunState:
    state = replace(state, admission="admitted")
    return ready(state) if state.phase is Phase.STARTING else state


def _notices_published(state: RunState, event: NoticesPublished) -> RunState:
    state = replace(state, notices=state.notices.published(event.count))
    if event.notify is None:
        return state
    return replace(state, environment=replace(state.environment, notify=event.notify))


def _child_started(state: RunState, event: ChildStarted) -> RunState:
    return replace(state, tree=with_child(state.tree, event.run_id, lambda child: replace(child, started=True)))


def _runs_child(state: RunState, run_id: str) -> bool:
    child = child_of(state.tree, run_id)
    return child is not None and not child.ended


_NO_CHILD: Final = "no child with this id is running"

TABLE: Final[Mapping[type[Event], Transition]] = {
    # Events that result from the run's own actions.
    RunPrepared: Transition(
        to={S: (S, R), ENDED: (ENDED,)},
        change=run_prepared,
        fits=lambda state, _: state.spec is None,
        otherwise="the run is already prepared",
    ),
    RunRefused: Transition(to=ENDS, change=_refused),
    RunAdmitted: Transition(
        to={S: (S, R), R: (R,), T: (T,), A: (A,), E: (E,)},
        change=_admitted,
        fits=lambda state, _: state.admission == "waiting",
        otherwise="the run doesn't wait for its tenant",
    ),
    WorkspacePrepared: Transition(
        to={S: (S, R), ENDED: (ENDED,)},
        change=workspace_prepared,
        fits=awaits_clone,
        otherwise="the run has no repository to clone",
    ),
    ChangeStored: Transition(
        to={ENDED: (ENDED,)},
        change=change_stored,
        fits=is_storing,
        otherwise="no change is being stored",
    ),
    ChangePushed: Transition(
        to={ENDED: (ENDED,)},
        change=change_pushed,
        fits=is_pushing,
        otherwise="no change is being pushed",
    ),
    ReturnStopped: Transition(
        to={ENDED: (ENDED,)},
        change=return_stopped,
        fits=lambda state, _: state.returning is not None and is_wait_over(state),
        otherwise="nobody has ended the wait for the change",
    ),
    HookReturned: Transition(
        to={S: (S, R, ENDED), ENDED: (ENDED,)},
        change=hook_ended,
        fits=lambda state, event: event.step == due_hook(state),
        otherwise="this hook is not due",
    ),
    HookFailed: Transition(
        to={S: (ENDED,), ENDED: (ENDED,)},
        change=hook_ended,
        fits=lambda state, event: event.step == due_hook(state),
        otherwise="this hook is not due",
    ),
    TurnBegan: Transition(
        to={R: (R, T, E, ENDED), E: (T, E, ENDED)},
        change=_turn_began,
        fits=_is_turn_due,
        otherwise="no turn is due",
    ),
    PartsStored: Transition(
        to={T: (T,), ENDED: (ENDED,)},
        change=parts_stored,
        fits=lambda state, _: bool(state.incoming.due),
        otherwise="no part waits to be stored",
    ),
    ModelReplied: Transition(
        to={T: (T, R, A, E, ENDED), ENDED: (ENDED,)},
        change=model_replied,
        fits=lambda state, _: state.phase is T,
        otherwise="no model call is due",
    ),
    ModelFailed: Transition(
        to={T: (T, ENDED), ENDED: (ENDED,)},
        change=model_failed,
        fits=lambda state, _: state.phase is T,
        otherwise="no model call is due",
    ),
    ContextCompressed: Transition(
        to={T: (T, ENDED), ENDED: (ENDED,)},
        change=context_compressed,
        fits=lambda state, _: state.phase is T and state.window.due is not None,
        otherwise="no compression is due",
    ),
    CompressionFailed: Transition(
        to={T: (T,), ENDED: (ENDED,)},
        change=compression_failed,
        fits=lambda state, _: state.phase is T and state.window.due is not None,
        otherwise="no compression is due",
    ),
    BackoffEnded: Transition(
        to={T: (T,), A: (A,), ENDED: (ENDED,)},
        change=lambda state, _: replace(state, retry_at=None) if state.parked is None else attempted_now(state),
        fits=lambda state, _: state.retry_at is not None,
        otherwise="no retry is due",
    ),
    CallsPrepared: Transition(
        to={A: (A, R), ENDED: (ENDED,)},
        change=calls_prepared,
        fits=lambda state, _: state.phase is A,
        otherwise="no tool call is open",
    ),
    ToolsReturned: Transition(
        to={A: (A, R), ENDED: (ENDED,)},
        change=tools_returned,
        fits=lambda state, _: state.phase is A,
        otherwise="no tool call is open",
    ),
    ModelSampled: Transition(
        to={A: (A,), ENDED: (ENDED,)},
        change=model_sampled,
        fits=lambda state, _: state.phase is A,
        otherwise="no tool call is open",
    ),
    SamplingFailed: Transition(
        to={A: (A,), ENDED: (ENDED,)},
        change=sampling_failed,
        fits=lambda state, _: state.phase is A,
        otherwise="no tool call is open",
    ),
    AsksExpired: Transition(
        to={S: (S, ENDED), A: (A, R)},
        change=asks_expired,
        fits=lambda state, _: bool(state.asks),
        otherwise="no call is waiting for approval",
    ),
    AnswerEvaluated: Transition(
        to={E: (E, R, ENDED), ENDED: (ENDED,)},
        change=answer_evaluated,
        fits=lambda state, _: state.phase is E and state.answer.held is not None,
        otherwise="no evaluation is due",
    ),
    EvaluationFailed: Transition(
        to={E: (R, ENDED), ENDED: (ENDED,)},
        change=evaluation_failed,
        fits=lambda state, _: state.phase is E and state.answer.held is not None,
        otherwise="no evaluation is due",
    ),
    TimeRanOut: Transition(
        to=ENDS,
        change=time_ran_out,
        fits=lambda state, _: hard_end(state) is not None,
        otherwise="the run has no deadline",
    ),
    RunReopened: Transition(
        to={ENDED: (R, T, A, E, ENDED)},
        change=reopened,
        fits=lambda state, _: state.reopening is not None,
        otherwise="nobody has asked for it",
    ),
    MessageAnswered: Transition(
        to={ENDED: (R,)},
        change=message_answered,
        fits=lambda state, _: state.is_answer,
        otherwise="the outcome ends the run",
    ),
    WaitEnded: Transition(to=STAYS, change=lambda state, _: state),
    NoticesPublished: Transition(to=STAYS, change=_notices_published),
    SignatureUsed: Transition(to=STAYS, change=_signature_used),
    RunReset: Transition(to=STAYS, change=_reset),
    SignalIgnored: Transition(to=STAYS, change=_signal_ignored),
    # Requests from people. A request that cannot be carried out adds a notice.
    Approved: Transition(to={**STAYS, S: (S, R)}, change=steered),
    Denied: Transition(to={**LAST_RESULT, S: (S, ENDED)}, change=steered),
    MessageReceived: Transition(
        to={S: (S,), R: (R, ENDED), T: (T, ENDED), A: (A, R, ENDED), E: (E, ENDED), ENDED: (ENDED,)}, change=steered
    ),
    PauseRequested: Transition(to=STAYS, change=steered),
    ResumeRequested: Transition(to=STAYS, change=steered),
    RetryRequested: Transition(to=STAYS, change=steered),
    PermissionsSet: Transition(to=STAYS, change=steered),
    AbortRequested: Transition(to={**ENDS, ENDED: (ENDED,)}, change=steered),
    # Events from parent and child runs.
    ChildrenBegan: Transition(
        to={A: (A, R)},
        change=children_began,
        fits=lambda state, event: any(c.call.id in event.names and c.result is None for c in state.calls.open),
        otherwise="none of these calls is open",
    ),
    ChildStarted: Transition(
        to=STAYS,
        change=_child_started,
        fits=lambda state, event: child_of(state.tree, event.run_id) is not None,
        otherwise="there is no child with this id",
    ),
    ChildEnded: Transition(
        to=LAST_RESULT,
        change=child_ended,
        fits=lambda state, event: _runs_child(state, event.run_id),
        otherwise=_NO_CHILD,
    ),
    ChildReported: Transition(
        to=STAYS,
        change=lambda state, event: replace(state, tree=with_report(state.tree, event.report)),
        fits=lambda state, event: _runs_child(state, event.report.run_id),
        otherwise=_NO_CHILD,
    ),
    AncestryChanged: Transition(
        to=STAYS,
        change=ancestry_changed,
        fits=lambda state, _: state.tree.lineage is not None,
        otherwise="no run has started this one",
    ),
    BudgetRequested: Transition(
        to=STAYS,
        change=budget_requested,
        fits=lambda state, event: _runs_child(state, event.request.run_id),
        otherwise=_NO_CHILD,
    ),
    BudgetGranted: Transition(
        to=STAYS,
        change=budget_answered,
        fits=lambda state, event: state.tree.asking is not None and state.tree.asking.number == event.number,
        otherwise="no request with this number is open",
    ),
    TreeSignalSent: Transition(
        to=STAYS,
        change=lambda state, _: replace(state, tree=without_first_signal(state.tree)),
        fits=lambda state, _: bool(state.tree.unsent),
        otherwise="no signal is queued",
    ),
}
"""The transition table, with one entry per event."""
