"""How a turn begins: is a limit reached, and what is the model told before it speaks?"""

from dataclasses import replace
from datetime import datetime

from loom.domain.core.messages import Message, is_from_person, reminder
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action as TaskAction
from loom.domain.machine.answers import with_draft
from loom.domain.machine.compression_step import nearly_full
from loom.domain.machine.limits import limit_hit, warning
from loom.domain.machine.steering import note
from loom.domain.machine.wrap_up import last_words, stopped, summing_up
from loom.domain.run.state import Outcome, Phase, RunState, WrapUp
from loom.domain.tools.loop_detection import Repetition, circles, is_loop
from loom.domain.tools.todos import forgotten


def stopped_at_limit(state: RunState, at: datetime) -> RunState:
    """The run at a limit: with its draft as its answer, with a wish, summing up, or at its end; else as it is."""
    loop = _loop(state)
    if loop is None and limit_hit(state, at) is None:
        return state
    if (finished := with_draft(state, at)) is not None:
        return finished
    return (summing_up(state, loop, at) if loop else stopped(state, at)) or state


def _loop(state: RunState) -> Outcome | None:
    """The outcome of a run that goes round in circles although its model was told, or None."""
    if not is_loop(state.repetition, state.agent.loop_window):
        return None
    message = (
        f"stopped after {state.turn} turns: the last {state.repetition.turns} repeated calls just made, with the same"
        " results. Say what to do instead in a new run, or raise LOOM_LOOP_WINDOW if this is how the task goes."
    )
    error = RunError(type="LoopDetected", message=message, context={"limit": "loop", "reason": "loop"})
    return Outcome(status=RunStatus.LIMIT_REACHED, error=error)


def last_turn(state: RunState, wrap_up: WrapUp) -> RunState:
    """The turn in which the model sums up, without tools."""
    state, told = last_words(replace(state, turn=state.turn_state.next().turn), wrap_up)
    return _begun(state, (*state.inbox, told))


def next_turn(state: RunState, at: datetime) -> RunState:
    """An ordinary turn, with what the model has to be told of before it."""
    heard = state.inbox
    if any(is_from_person(message) for message in heard):
        state = replace(state, repetition=Repetition())
    if warn := warning(state, at):
        state = note(replace(state, warned=True), TaskAction.BUDGET, at, text=warn)
        heard = (*heard, reminder(warn))
    if full := nearly_full(state):
        state = note(replace(state, window=replace(state.window, warned=True)), TaskAction.BUDGET, at, text=full)
        heard = (*heard, reminder(full))
    begins = state.turn_state.next()
    if left := forgotten(state.todos, begins.turn):
        state = replace(state, todos=replace(state.todos, turn=begins.turn))
        heard = (*heard, reminder(left))
    if circling := circles(state.repetition):
        warned = replace(state, repetition=replace(state.repetition, warned=True))
        state = note(warned, TaskAction.BUDGET, at, text=circling)
        heard = (*heard, reminder(circling))
    return _begun(replace(state, turn=begins.turn), heard)


def _begun(state: RunState, heard: tuple[Message, ...]) -> RunState:
    transcript = state.transcript.extended(heard)
    return replace(state, phase=Phase.THINKING, transcript=transcript, inbox=(), answer=None)
