"""Handle the model's answer, which leads to tool calls, another turn, the run's result, or a failure.

tool calls                                                    the calls run, and the model reads their results
truncated or empty text, or text if `done` is required        a reminder and another turn
an answer that does not match the output schema               at most three repairs, and then the run fails
an answer while the run is paused or has an unread message    the answer is held back
an answer in a run with the `reflect` pattern                 a draft that is critiqued (`reflection_step`)
any other answer                                              the run's answer or its evaluation (`evaluation_step`)
"""

from datetime import datetime
from typing import Final

from loom.domain.core.frozen import replace
from loom.domain.core.messages import reminder
from loom.domain.core.output_schema import repair
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action as TaskAction
from loom.domain.core.tool_calls import OpenCall, ToolResult, describe, failed, read_done
from loom.domain.core.tool_names import ASK_USER, DONE
from loom.domain.machine.compression_step import put_off
from loom.domain.machine.evaluation_step import answer_or_evaluation
from loom.domain.machine.limits import charged, reserve_for_last_answer, turns_used_up, within_tool_calls
from loom.domain.machine.model_retry import resend
from loom.domain.machine.parking import unparked
from loom.domain.machine.reflection_step import draft_criticised, is_criticised, with_critique, with_draft
from loom.domain.machine.tool_results import end_calls, not_run, opened, settled, with_quick_results
from loom.domain.machine.wrap_up import call_not_covered, last_answer_given, summing_up
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.run.events import ModelReplied
from loom.domain.run.retry_policy import Tries
from loom.domain.run.state import OpenCalls, Outcome, Phase, RunState, ended, note, question_of, with_calls
from loom.domain.tools.loop_detection import followed, text_step

MAX_EMPTY: Final = 3
"""The run fails after this many consecutive empty answers."""
MAX_PIECES: Final = 10
"""The run ends after this many consecutive truncated parts of one answer."""
MAX_REPAIRS: Final = 3
"""The maximum number of times that the model is asked to repair an answer that does not match the schema."""
LONGEST_QUOTE: Final = 2000
"""The maximum length of the last answer in a failed run's error. The result's `output` contains the full answer."""


def model_replied(state: RunState, event: ModelReplied) -> RunState:
    """Return the next state of a run whose model call has returned.

    The worker may have postponed the call, or asked for values that it has not cached, instead of returning an answer.
    """
    reply, at = event.reply, event.at
    if reply.broken_off:
        return _with_unfinished_text(state, reply.broken_off)
    if reply.uncovered is not None:
        return with_draft(state, at) or call_not_covered(state, reply.uncovered, at)
    if reply.too_long is not None:
        return put_off(state, reply.too_long, reply.collapsed)
    if reply.message is None:
        return resend(state)
    state = _with_reply(state, reply, at)
    if (wrap_up := state.answer.wrap_up) is not None:
        return last_answer_given(end_calls(state, at, "not run: the run has come to its end"), wrap_up, reply)
    if state.answer.reflection.stage == "critique":
        state, approved = draft_criticised(state, reply, at)
        return state if approved is None else answered(state, approved, at)
    return _act(state, reply, at) if state.calls.open else _text_answered(state, reply, reply.message.text, at)


def _with_unfinished_text(state: RunState, text: str) -> RunState:
    """Return an aborted run with the text that its model had written. The conversation doesn't contain it, so that the
    run can be retried as if the call had not been made.
    """
    outcome = state.outcome
    if outcome is None or outcome.status is not RunStatus.ABORTED or outcome.output:
        return state
    return replace(state, outcome=replace(outcome, output=state.answer.partial + text))


def _with_reply(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    """Return the run with the model's message added to the conversation and the message's tool calls open."""
    if reply.message is None:
        return state
    if state.parked is not None:
        state = unparked(state, at)
    stale = state.calls.rules_changed
    calls = zip(reply.message.tool_calls, reply.plans, strict=True)
    transcript = state.transcript.extended([*reply.recalled, reply.message])
    state = replace(
        charged(state, reply.usage, reply.cost_micros, at),
        phase=Phase.READY,
        tries=Tries(),
        retry_at=None,
        window=state.window.measured(reply.usage, estimated=reply.estimated, collapsed=reply.collapsed),
        conversation=state.conversation.cached_as(transcript, send_spec=stale),
        calls=OpenCalls(
            open=tuple(opened(call, plan, at, stale=stale) for call, plan in calls),
            grants=state.calls.grants,
            grant_proofs=state.calls.grant_proofs,
        ),
    )
    state = with_quick_results(state, reply.message.tool_calls, reply.plans, at)
    if reply.reserved is None:
        return state
    return replace(state, tree=replace(state.tree, reserve=reserve_for_last_answer(state, reply.reserved)))


def _act(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    done = next((c for c in state.calls.open if c.call.name == DONE and not c.plan.error), None)
    if done is not None:
        return _done_called(state, done, reply, at)
    if state.turn_state.is_final:
        wanted = tuple(describe(call.call) for call in state.calls.open)
        state = end_calls(state, at, "not run: the run's turns are used up")
        return with_draft(state, at) or summing_up(state, turns_used_up(state, wanted), at)
    unfinished = {call.call.id for call in state.calls.open if call.result is None}
    state = within_tool_calls(state)
    beyond = [call for call in state.calls.open if call.call.id in unfinished and call.result is not None]
    state = not_run(state, beyond, at)
    return settled(replace(_with_questions_noted(state, at), phase=Phase.ACTING, answer=state.answer.progressed))


def _with_questions_noted(state: RunState, at: datetime) -> RunState:
    for call in state.calls.open:
        if call.call.name == ASK_USER and call.result is None:
            asked = {"text": question_of(call), "by": state.request.agent, "call_id": call.call.id}
            state = note(state, TaskAction.MESSAGE, at, **asked)
    return state


def _done_called(state: RunState, done: OpenCall, reply: ModelReply, at: datetime) -> RunState:
    """Return the next state of a run whose model has called `done`. Other calls in the same message do not run."""
    text = read_done(done.call) or state.transcript.messages[-1].text
    wrong = _problems(state, reply)
    result = ToolResult(content="Done.")
    if state.inbox:
        result = ToolResult(content="Not yet: a message has come in. Read it first, then call `done` again.")
    elif wrong:
        result = failed(repair(wrong, through_done=True), "validation")
    state = with_calls(state, lambda c: replace(c, result=result) if c is done else c)
    state = not_run(state, [replace(done, result=result)], at)
    state = end_calls(state, at, "not run: `done` was called beside this")
    state = replace(state, answer=state.answer.progressed)
    if wrong and not state.inbox:
        return _repaired(state, text, wrong)
    return answered(state, _outcome(text, reply, explicit=True), at)


def _text_answered(state: RunState, reply: ModelReply, text: str, at: datetime) -> RunState:
    """Return the next state of a run whose model has answered without a tool call."""
    text = state.answer.partial + text
    if reply.stop == "length":
        return _continued(replace(state, answer=replace(state.answer, partial=text)))
    if not text.strip():
        return _asked_again(state)
    state = replace(state, answer=state.answer.progressed)
    if state.agent.require_done_tool and not state.inbox:
        note_to_model = "Call the `done` tool with the result when the task is finished; go on otherwise."
        repetition = followed(state.work.repetition, text_step(text), state.agent.loop_window)
        return replace(state, inbox=(reminder(note_to_model),), work=replace(state.work, repetition=repetition))
    # If a new message has arrived, this can't be the final answer.
    if not state.inbox and (wrong := _problems(state, reply)):
        return _repaired(replace(state, inbox=(*state.inbox, reminder(repair(wrong)))), text, wrong)
    return answered(state, _outcome(text, reply), at)


def answered(state: RunState, outcome: Outcome, at: datetime) -> RunState:
    """Return the next state of a run that has an answer. A run that is paused or has an unread message does not end
    with this answer.
    """
    if state.hold is not None or state.inbox:
        return replace(state, answer=replace(state.answer, held=outcome))
    if state.answer.reflection.stage and is_criticised(state, outcome):
        return with_critique(state, outcome)
    if state.agent.evaluates:
        return answer_or_evaluation(state, outcome, at)
    return ended(state, outcome)


def _outcome(text: str, reply: ModelReply, *, explicit: bool = False) -> Outcome:
    structured = reply.checked.value if reply.checked else None
    return Outcome(status=RunStatus.COMPLETED, output=text, structured=structured, explicit=explicit)


def _problems(state: RunState, reply: ModelReply) -> tuple[str, ...]:
    """Return an answer's schema problems. An answer that the worker's version can't validate is also a problem."""
    if state.agent.output_schema is None:
        return ()
    return reply.checked.problems if reply.checked else ("the answer was not checked: its worker knows no schemas",)


def _repaired(state: RunState, text: str, wrong: tuple[str, ...]) -> RunState:
    """Return the run with one more turn to repair an invalid answer. After too many repairs, the run fails."""
    if state.answer.repairs < MAX_REPAIRS:
        return replace(state, answer=replace(state.answer, repairs=state.answer.repairs + 1))
    message = f"the answer does not fit the output schema, also after {MAX_REPAIRS} repairs: {'; '.join(wrong)}"
    context = {"problems": list(wrong), "answer": text[:LONGEST_QUOTE], "repairs": state.answer.repairs}
    error = RunError(type="OutputSchemaError", message=message, context=context)
    failed_run = Outcome(status=RunStatus.FAILED, output=text, error=error)
    return ended(state, state.answer.draft or failed_run)


def _continued(state: RunState) -> RunState:
    """In the next turn, continue an answer that was truncated at the output limit. The parts are joined."""
    if state.answer.nudges + 1 < MAX_PIECES:
        return _nudged(state, "Your answer was cut. Go on exactly where it stopped.")
    message = f"the answer was still not complete after {MAX_PIECES} pieces; allow more output tokens, or ask for less"
    error = RunError(type="MaxOutputReached", message=message, context={"limit": "output_tokens"})
    return ended(state, Outcome(status=RunStatus.LIMIT_REACHED, output=state.answer.partial, error=error))


def _asked_again(state: RunState) -> RunState:
    if state.answer.nudges + 1 < MAX_EMPTY:
        return _nudged(state, "Your answer was empty. Use a tool, or give the final answer.")
    error = RunError(type="LLMBadResponseError", message=f"the model answered with nothing {MAX_EMPTY} times in a row")
    return ended(state, Outcome(status=RunStatus.FAILED, output=state.answer.partial, error=error))


def _nudged(state: RunState, text: str) -> RunState:
    answer = replace(state.answer, nudges=state.answer.nudges + 1)
    return replace(state, answer=answer, inbox=(*state.inbox, reminder(text)))
