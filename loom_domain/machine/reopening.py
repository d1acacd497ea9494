"""Continue an ended run that a person has retried.

    the run's end, RetryRequested ──▶ RunReopened ──▶ the phase in which the run ended, or the next turn

The server takes back only the run's last workflow task, the one that ended it. The run therefore knows everything that
it knew at its end, and repeats nothing. The request arrives before the run can end in the same way again, and takes
effect when the run has an outcome. Limits, the model and messages change at that moment.
"""

from datetime import datetime, timedelta
from typing import Final

from loom.domain.core.frozen import replace
from loom.domain.core.messages import RETRIED, JsonObject, reminder
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import failed
from loom.domain.machine.limits import TURNS, limit_hit, share_of
from loom.domain.machine.model_retry import with_named_model
from loom.domain.machine.steering import resumed, steered
from loom.domain.machine.tool_results import next_for_calls, not_run, settled
from loom.domain.run.actions import RunChildren, RunTools
from loom.domain.run.events import MessageReceived, RetryRequested, RunReopened
from loom.domain.run.retry_policy import Tries
from loom.domain.run.state import Outcome, Phase, RunState, note, with_calls
from loom.domain.tools.loop_detection import Repetition
from loom.domain.tree.tree import without_unbegun

WITHIN: Final = timedelta(seconds=10)
"""The maximum time between the request and the end. A request to a run that doesn't end within this time has no effect
on a later end.
"""
INTERRUPTED: Final = (
    "Not finished: the run ended while this ran, and goes on only now. It may have taken effect in whole, in part or"
    " not at all, and it has not been tried again. Check what is there before you go on."
)
GOES_ON: Final = "The run had ended, and now it goes on. You have all your tools: continue the task."


def reopened(state: RunState, event: RunReopened) -> RunState:
    """Return the next state of an ended run that a person retried. If it can't go on, it stays ended."""
    asked, outcome = state.reopening, state.outcome
    if asked is None or outcome is None:
        return state
    ended = replace(state, reopening=None)
    going_on = _with_limits(replace(ended, outcome=None, returning=None), asked)
    if why := _refused(going_on, outcome, asked, event):
        return note(ended, Action.IGNORED, event.at, signal="retry", why=why)
    return _changed(_as_it_was(going_on, event), outcome, asked)


def _refused(state: RunState, outcome: Outcome, asked: RetryRequested, event: RunReopened) -> str | None:
    if event.at - asked.at > WITHIN:
        return "the run had not ended when this was sent"
    if state.tree.lineage is not None:
        return "the run above this one has gone on without it"
    if outcome.status is RunStatus.COMPLETED or state.turn == 0:
        return f"a run that is {outcome.status} in turn {state.turn} can't go on"
    reached = limit_hit(state, event.at)
    if reached is None or reached.error is None:
        return None
    # A pending call belongs to a turn that has begun.
    return None if _is_calling(state) and reached.error.type == TURNS else reached.error.message


def _with_limits(state: RunState, asked: RetryRequested) -> RunState:
    """Return the run with the limits that a person named, and ready to work until it reaches them."""
    wrap_up = state.answer.wrap_up
    budget = asked.budget.or_else(state.request.budget)
    tree = without_unbegun(state.tree)
    return replace(
        state,
        request=replace(state.request, budget=budget, max_turns=asked.max_turns or state.request.max_turns),
        tree=tree if tree.limits is None else replace(tree, share=share_of(budget, tree.limits)),
        last_answers=state.last_answers + (wrap_up is not None and wrap_up.turn == state.turn),
        answer=replace(state.answer, nudges=0, repairs=0),
        spending=replace(state.spending, warned=False),
        work=replace(state.work, repetition=Repetition()),
    )


def _is_calling(state: RunState) -> bool:
    """Whether a model call is pending that isn't for the last answer."""
    return state.phase is Phase.THINKING and state.answer.wrap_up is None


def _as_it_was(state: RunState, event: RunReopened) -> RunState:
    """Return the run at the step that it was at when it ended. The time to answer its asks starts again."""
    was_waiting = state.retry_at is not None
    state = replace(
        resumed(state, event.at),
        retries=state.retries + 1,
        admission="waiting" if state.admission else "",
        hooks_left=(),
        parked=None,
    )
    if state.phase is Phase.ACTING and state.calls.open and not was_waiting:
        state = _without_interrupted_calls(state, event.at)
    return replace(state, retry_at=None)


def _without_interrupted_calls(state: RunState, at: datetime) -> RunState:
    """Return the run with a result for each call that ran at its end. Calls that wait for a person still wait."""
    action = next_for_calls(state)
    interrupted = action.calls if isinstance(action, RunTools | RunChildren) else ()
    ids = {call.call.id for call in interrupted}
    result = failed(INTERRUPTED, "aborted")
    state = with_calls(state, lambda c: replace(c, result=result) if c.call.id in ids else c)
    return not_run(state, [call for call in state.calls.open if call.call.id in ids], at)


def _changed(state: RunState, outcome: Outcome, asked: RetryRequested) -> RunState:
    """Return the run with the model and the message that a person named, and with a message that the model answers."""
    state = note(state, Action.RETRIED, asked.at, **_told(state, outcome, asked))
    if asked.message:
        state = steered(state, MessageReceived(text=asked.message, by=asked.by, at=asked.at))
    is_calling = _is_calling(state)
    has_next = is_calling or state.calls.open or state.inbox or state.answer.held
    if state.answer.wrap_up is not None or state.agent.crew is not None or not has_next:
        told = reminder(GOES_ON)
        told = replace(told, metadata={**told.metadata, RETRIED: state.retries})
        state = replace(state, inbox=(*state.inbox, told), answer=replace(state.answer, wrap_up=None))
    state = _ready_to_call(state) if is_calling else _ready_for_turn(state)
    return with_named_model(state, asked.model, asked.by, asked.at) if asked.model else state


def _told(state: RunState, outcome: Outcome, asked: RetryRequested) -> JsonObject:
    budget = {name: value for name in asked.budget.__dataclass_fields__ if (value := getattr(asked.budget, name))}
    return {
        "after": outcome.status,
        "error": outcome.error.type if outcome.error else "",
        "number": state.retries,
        "by": asked.by,
        "model": asked.model,
        "max_turns": asked.max_turns,
        "budget": budget or None,
    }


def _ready_to_call(state: RunState) -> RunState:
    """Return the run, ready to make its pending model call, which now contains the messages that have arrived."""
    state = replace(state, tries=Tries(earlier=state.tries.attempt))
    if state.window.due is None:
        state = replace(state, conversation=state.conversation.extended(state.inbox), inbox=())
        return replace(state, incoming=state.incoming.read)
    due = replace(state.window.due, tries=Tries())
    return replace(state, window=replace(state.window, due=due, attempts=state.window.attempts + 1))


def _ready_for_turn(state: RunState) -> RunState:
    """Return the run, ready for its next turn or for its open calls."""
    if state.phase is Phase.ACTING and state.calls.open:
        return settled(state)
    return replace(state, phase=Phase.READY) if state.phase is not Phase.EVALUATING else state
