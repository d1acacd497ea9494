"""How a run starts, and how each of its turns begins: is a limit reached, and what is the model reminded of?"""

from dataclasses import replace
from datetime import datetime

from loom.domain.agents.hook_steps import steps_before_run
from loom.domain.agents.reflection import Reflection
from loom.domain.agents.spec import window_size
from loom.domain.core.messages import Message, is_from_person, reminder, transcript_of, user
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action as TaskAction
from loom.domain.machine.limits import limit_hit, warning, with_share_and_limits
from loom.domain.machine.reflection_step import has_word_from_person, interrupted, with_draft
from loom.domain.machine.wrap_up import last_turn_reminder, stopped, summing_up
from loom.domain.run.activity_payloads import Earlier
from loom.domain.run.events import RunPrepared
from loom.domain.run.state import Environment, Outcome, Phase, RunState, WrapUp, note
from loom.domain.tools.loop_detection import Repetition, circles, is_loop
from loom.domain.tools.todos import forgotten


def run_prepared(state: RunState, event: RunPrepared) -> RunState:
    """The run with its agent pinned: ready, or with the hooks before its first turn to come."""
    prepared = event.prepared
    spec = prepared.spec.with_permissions(state.request.permissions)
    if state.tree.lineage is not None:
        spec = replace(spec, above=state.tree.lineage.above)
    if prepared.earlier is not None:
        state = _forked(state, prepared.earlier)
    resolved = replace(
        state,
        request=replace(state.request, budget=state.request.budget.or_else(spec.budget)),
        spec=spec,
        conversation=replace(state.conversation, spec_digest=spec.digest, send_spec=spec != prepared.spec),
        environment=Environment(search_attributes=prepared.search_attributes, ledger=prepared.ledger),
        tree=with_share_and_limits(state.tree, state.request.budget, prepared.limits),
        answer=replace(state.answer, reflection=Reflection(stage="draft" if spec.pattern == "reflect" else "")),
    )
    return ready(replace(resolved, hooks_left=steps_before_run(spec.hooks)) if spec.hooks else resolved)


def _forked(state: RunState, earlier: Earlier) -> RunState:
    conversation = state.conversation.cached_as(transcript_of(earlier.messages))
    work = replace(state.work, todos=earlier.todos, artifacts=earlier.artifacts)
    return replace(state, conversation=conversation, work=work)


def ready(state: RunState) -> RunState:
    """The run before its first turn, once no hook is left and no person is asked about its start."""
    if state.hooks_left or state.calls.open:
        return state
    state = replace(state, phase=Phase.READY)
    if state.transcript.messages:  # a fork has a conversation already
        return state
    return replace(state, conversation=state.conversation.extended([user(state.request.task)]))


def stopped_at_limit(state: RunState, at: datetime) -> RunState:
    """The run at a limit: ended with its draft, asking for budget, summing up, or ended; below all limits as it is."""
    loop = _loop(state) if state.agent.loop_window else None
    if loop is None and limit_hit(state, at) is None:
        return state
    if (finished := with_draft(state, at)) is not None:
        return finished
    return (summing_up(state, loop, at) if loop else stopped(state, at)) or state


def _loop(state: RunState) -> Outcome | None:
    """The outcome of a run that repeats itself although its model was warned, or None."""
    repetition = state.work.repetition
    if not is_loop(repetition, state.agent.loop_window):
        return None
    message = (
        f"stopped after {state.turn} turns: the last {repetition.turns} repeated calls just made, with the same"
        " results. Say what to do instead in a new run, or raise LOOM_LOOP_WINDOW if this is how the task goes."
    )
    error = RunError(type="LoopDetected", message=message, context={"limit": "loop", "reason": "loop"})
    return Outcome(status=RunStatus.LIMIT_REACHED, error=error)


def without_late_critique(state: RunState) -> RunState:
    """The run as its next turn begins: what a person has said comes before a critique."""
    is_critique = state.answer.reflection.stage == "critique"
    return interrupted(state) if is_critique and has_word_from_person(state) else state


def last_turn(state: RunState, wrap_up: WrapUp) -> RunState:
    """The turn in which the model sums up, without tools."""
    state, reminded = last_turn_reminder(replace(state, turn=state.turn_state.next().turn), wrap_up)
    return _begun(state, (*state.inbox, reminded))


def next_turn(state: RunState, at: datetime) -> RunState:
    """An ordinary turn, with the reminders that the model gets before it."""
    heard = state.inbox
    if any(is_from_person(message) for message in heard):
        state = replace(state, work=replace(state.work, repetition=Repetition()))
    if warn := warning(state, at):
        state = replace(state, spending=replace(state.spending, warned=True))
        state = note(state, TaskAction.BUDGET, at, text=warn)
        heard = (*heard, reminder(warn))
    if full := nearly_full(state):
        state = note(replace(state, window=replace(state.window, warned=True)), TaskAction.BUDGET, at, text=full)
        heard = (*heard, reminder(full))
    begins = state.turn_state.next()
    todos = state.work.todos
    if todos.items and (open_todos := forgotten(todos, begins.turn)):
        state = replace(state, work=replace(state.work, todos=replace(todos, turn=begins.turn)))
        heard = (*heard, reminder(open_todos))
    repetition = state.work.repetition
    if repetition.turns and (circling := circles(repetition)):
        state = replace(state, work=replace(state.work, repetition=replace(repetition, warned=True)))
        state = note(state, TaskAction.BUDGET, at, text=circling)
        heard = (*heard, reminder(circling))
    return _begun(replace(state, turn=begins.turn), heard)


def _begun(state: RunState, heard: tuple[Message, ...]) -> RunState:
    conversation = state.conversation.extended(heard)
    answer = replace(state.answer, held=None)
    return replace(state, phase=Phase.THINKING, conversation=conversation, inbox=(), answer=answer)


def nearly_full(state: RunState) -> str | None:
    """A warning, once, when the next calls may bring a compression."""
    size = window_size(state.window.size, state.agent)
    if state.window.warned or state.window.tokens < state.agent.warn_at * size:
        return None
    return (
        f"The context is {100 * state.window.tokens // size} % full ({state.window.tokens} of {size} tokens). Soon what"
        " is older will be summarised: finish what you are at, and write down what must not be lost."
    )
