"""Start a run and begin each turn: check the limits and add reminders for the model."""

from datetime import datetime

from loom.domain.agents.hook_steps import steps_before_run
from loom.domain.agents.reflection import Reflection
from loom.domain.agents.spec import window_size
from loom.domain.core.frozen import replace
from loom.domain.core.messages import Message, is_from_person, reminder, transcript_of, user, with_parts
from loom.domain.core.repositories import Archive, ArchiveWorkspace, Repository, Workspace
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action as TaskAction
from loom.domain.machine.chatting import said_in_chat
from loom.domain.machine.limits import limit_hit, warning, with_share_and_limits
from loom.domain.machine.reflection_step import has_word_from_person, interrupted, with_draft
from loom.domain.machine.wrap_up import last_turn_reminder, stopped, summing_up
from loom.domain.run.activity_payloads import Earlier
from loom.domain.run.events import PartsStored, RunPrepared
from loom.domain.run.state import Environment, Outcome, Phase, RunState, WrapUp, note
from loom.domain.tools.loop_detection import Repetition, circles, is_loop
from loom.domain.tools.todos import forgotten


def run_prepared(state: RunState, event: RunPrepared) -> RunState:
    """Return the run with its agent pinned. The run is then ready for its first turn, unless hooks must run before that
    turn.
    """
    prepared = event.prepared
    spec = prepared.spec.with_permissions(state.request.permissions)
    if state.tree.lineage is not None:
        spec = replace(spec, above=state.tree.lineage.above)
    if prepared.earlier is not None:
        state = _forked(state, prepared.earlier)
    resolved = replace(
        state,
        request=replace(
            state.request,
            budget=state.request.budget.or_else(spec.budget),
            parts=prepared.parts,
            workspace=_stored(state.request.workspace, prepared.archive),
        ),
        spec=spec,
        conversation=replace(state.conversation, spec_digest=spec.digest, send_spec=spec != prepared.spec),
        environment=Environment(
            search_attributes=prepared.search_attributes,
            ledger=prepared.ledger,
            quick_reads=prepared.quick_reads,
            execution=prepared.execution,
            notify=prepared.notify,
        ),
        signature_checks=replace(
            state.signature_checks,
            signed=prepared.signed,
            signed_at=prepared.signed_at,
            key=prepared.steering_key,
            widened=prepared.widened,
            approvals_are_named=prepared.approvals_are_named,
            proofs=prepared.proofs,
        ),
        tree=with_share_and_limits(state.tree, state.request.budget, prepared.limits),
        answer=replace(state.answer, reflection=Reflection(stage="draft" if spec.pattern == "reflect" else "")),
        admission=prepared.admission,
        checkout=state.tree.lineage.checkout if state.tree.lineage else None,
    )
    return ready(replace(resolved, hooks_left=steps_before_run(spec.hooks)) if spec.hooks else resolved)


def _stored(workspace: Workspace | None, digest: str) -> Workspace | None:
    """Return the workspace with the digest of an archive instead of its content."""
    if not isinstance(workspace, ArchiveWorkspace):
        return workspace
    return ArchiveWorkspace(archive=Archive(digest=digest, name=workspace.archive.name))


def _forked(state: RunState, earlier: Earlier) -> RunState:
    conversation = state.conversation.cached_as(transcript_of(earlier.messages))
    work = replace(state.work, todos=earlier.todos, artifacts=earlier.artifacts)
    return replace(state, conversation=conversation, work=work)


def is_clone_due(state: RunState) -> bool:
    """Whether the run's repository isn't cloned yet."""
    return isinstance(state.request.workspace, Repository) and state.checkout is None


def ready(state: RunState) -> RunState:
    """Return the run, ready for its first turn if it is admitted, its repository is cloned, all hooks have run, and no
    approval is pending.
    """
    if state.hooks_left or state.calls.open or state.admission == "waiting" or is_clone_due(state):
        return state
    state = replace(state, phase=Phase.READY)
    if state.transcript.messages:  # a fork already has a conversation
        return state
    task = user(state.request.task) if state.chat is None else said_in_chat(state.chat.answering[0])
    task = with_parts(task, state.request.parts)
    return replace(state, conversation=state.conversation.extended([task]))


def stopped_at_limit(state: RunState, at: datetime) -> RunState:
    """Return the next state of a run whose limits have been checked.

    A run that has reached a limit ends with its draft, requests budget, gives its last answer, or ends at once. Any
    other run is unchanged.
    """
    loop = _loop(state) if state.agent.loop_window else None
    if loop is None and limit_hit(state, at) is None:
        return state
    if (finished := with_draft(state, at)) is not None:
        return finished
    return (summing_up(state, loop, at) if loop else stopped(state, at)) or state


def _loop(state: RunState) -> Outcome | None:
    """Return the outcome of a run that keeps repeating the same calls after a warning, or None."""
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
    """Return the run without a pending critique if a person has sent a new message, which takes precedence."""
    is_critique = state.answer.reflection.stage == "critique"
    return interrupted(state) if is_critique and has_word_from_person(state) else state


def last_turn(state: RunState, wrap_up: WrapUp) -> RunState:
    """Return the run in its last turn. In this turn, the model gives a summary and can't use tools."""
    state, reminded = last_turn_reminder(replace(state, turn=state.turn_state.next().turn), wrap_up)
    return _begun(state, (*state.inbox, reminded))


def next_turn(state: RunState, at: datetime) -> RunState:
    """Return the run in a regular turn, with reminders for the model."""
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
    state = replace(state, conversation=conversation, inbox=(), incoming=state.incoming.read)
    return replace(state, phase=Phase.THINKING, answer=answer)


def parts_stored(state: RunState, event: PartsStored) -> RunState:
    """Return the run whose conversation contains the parts of the messages that the model reads next."""
    message = Message(role="user", content=event.parts)
    return replace(state, conversation=state.conversation.extended([message]), incoming=replace(state.incoming, due=()))


def nearly_full(state: RunState) -> str | None:
    """Return a one-time warning if the next calls might cause a compression, or None."""
    size = window_size(state.window.size, state.agent)
    if state.window.warned or state.window.tokens < state.agent.warn_at * size:
        return None
    return (
        f"The context is {100 * state.window.tokens // size} % full ({state.window.tokens} of {size} tokens). Soon what"
        " is older will be summarised: finish what you are at, and write down what must not be lost."
    )
