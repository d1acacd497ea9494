"""What becomes of an answer, be it text or a call of `done`: one more turn, the run's result, or a failure.

cut, empty, or not through `done` where it has to be     a reminder, and another turn
not as the output schema wants it                        repaired, three times at most; then the run fails
somebody holds the run, or has written something unread  held back
    a draft, by the pattern `reflect`                        criticised and revised (`reflecting`)
else                                                     the run's answer
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from loom.domain.agents.reflection import CRITICISE, REVISE, Reflection
from loom.domain.core.messages import is_from_person, reminder
from loom.domain.core.output_schema import repair
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tool_calls import OpenCall, ToolResult, failed, read_done
from loom.domain.machine.evaluation_step import concluded
from loom.domain.machine.tool_results import end_calls, with_calls
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.run.state import Outcome, RunState, ended
from loom.domain.tools.loop_detection import followed, text_step

MAX_EMPTY: Final = 3
"""Answers in a row that may be empty before the run fails."""
MAX_PIECES: Final = 10
"""Pieces of one answer that may be cut at the output limit before the run ends."""
MAX_REPAIRS: Final = 3
"""Times that an answer which does not fit its schema is sent back."""
LONGEST_QUOTE: Final = 2000
"""Characters of the last answer that the error of a failed run holds; the result's `output` has all of it."""


def take_done(state: RunState, done: OpenCall, reply: ModelReply, at: datetime) -> RunState:
    """The run after a call of `done`; other calls beside it are not run."""
    text = read_done(done.call) or state.transcript.messages[-1].text
    wrong = _problems(state, reply)
    result = ToolResult(content="Done.")
    if state.inbox:
        result = ToolResult(content="Not yet: a message has come in. Read it first, then call `done` again.")
    elif wrong:
        result = failed(repair(wrong, through_done=True), "validation")
    state = with_calls(state, lambda c: replace(c, result=result) if c is done else c)
    state = replace(end_calls(state, "not run: `done` was called beside this"), nudges=0, partial="")
    if wrong and not state.inbox:
        return _repaired(state, text, wrong)
    return answered(state, _outcome(text, reply, explicit=True), at)


def take_text(state: RunState, reply: ModelReply, text: str, at: datetime) -> RunState:
    """The run after an answer without a tool call."""
    text = state.partial + text
    if reply.stop == "length":
        return _continued(replace(state, partial=text))
    if not text.strip():
        return _asked_again(state)
    state = replace(state, partial="", nudges=0)
    if state.agent.require_done_tool and not state.inbox:
        note_to_model = "Call the `done` tool with the result when the task is finished; go on otherwise."
        repetition = followed(state.repetition, text_step(text), state.agent.loop_window)
        return replace(state, inbox=(reminder(note_to_model),), repetition=repetition)
    # With a message that it cannot know, it is not the final answer anyway.
    if not state.inbox and (wrong := _problems(state, reply)):
        return _repaired(replace(state, inbox=(*state.inbox, reminder(repair(wrong)))), text, wrong)
    return answered(state, _outcome(text, reply), at)


def answered(state: RunState, outcome: Outcome, at: datetime) -> RunState:
    """The run ends with an answer, unless somebody holds it or has written something that the answer cannot know."""
    if state.hold is not None or state.inbox:
        return replace(state, answer=outcome)
    if state.reflection.stage and state.reflection.round < state.agent.rounds and not outcome.judged:
        reflection = Reflection(stage="critique", round=state.reflection.round + 1)
        return replace(state, reflection=reflection, draft=outcome, inbox=(reminder(CRITICISE),))
    return concluded(state, outcome, at)


def take_critique(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    """The run after its draft was criticised: the draft is the answer, or it is revised."""
    if (draft := state.draft) is None:
        return state
    state = end_calls(state, "not run: this turn was for judging the answer only")
    if any(is_from_person(message) for message in state.inbox):
        return _interrupted(state)
    if reply.approves:
        state = replace(state, reflection=replace(state.reflection, stage="revision", round=state.agent.rounds))
        return answered(state, draft, at)
    return replace(state, reflection=replace(state.reflection, stage="revision"), inbox=(reminder(REVISE),))


def before_turn(state: RunState) -> RunState:
    """The run as its next turn begins: what a person has said goes before a critique."""
    due = state.reflection.stage == "critique" and any(is_from_person(message) for message in state.inbox)
    return _interrupted(state) if due else state


def with_draft(state: RunState, at: datetime) -> RunState | None:
    """The run that cannot go on, with its draft as its answer; None without one that knows all that was said."""
    if state.draft is None or any(is_from_person(message) for message in state.inbox):
        return None
    return concluded(replace(state, inbox=()), state.draft, at)


def _interrupted(state: RunState) -> RunState:
    """The draft knows nothing of what a person has just said: what comes of that is another one."""
    reflection = Reflection(stage="draft", round=state.reflection.round - 1)
    heard = tuple(message for message in state.inbox if is_from_person(message))
    return replace(state, reflection=reflection, draft=None, inbox=heard)


def _outcome(text: str, reply: ModelReply, *, explicit: bool = False) -> Outcome:
    structured = reply.checked.value if reply.checked else None
    return Outcome(status=RunStatus.COMPLETED, output=text, structured=structured, explicit=explicit)


def _problems(state: RunState, reply: ModelReply) -> tuple[str, ...]:
    """What is wrong with an answer by its schema; a worker that has not looked at it may not know of schemas."""
    if state.agent.output_schema is None:
        return ()
    return reply.checked.problems if reply.checked else ("the answer was not checked: its worker knows no schemas",)


def _repaired(state: RunState, text: str, wrong: tuple[str, ...]) -> RunState:
    """One more turn for an answer that does not fit its schema; the run fails when that has been tried enough."""
    if state.repairs < MAX_REPAIRS:
        return replace(state, repairs=state.repairs + 1)
    message = f"the answer does not fit the output schema, also after {MAX_REPAIRS} repairs: {'; '.join(wrong)}"
    context = {"problems": list(wrong), "answer": text[:LONGEST_QUOTE], "repairs": state.repairs}
    error = RunError(type="OutputSchemaError", message=message, context=context)
    failed_run = Outcome(status=RunStatus.FAILED, output=text, error=error)
    return ended(state, state.draft or failed_run)


def _continued(state: RunState) -> RunState:
    """An answer that ran into the output limit goes on in the next turn; its pieces become one text."""
    if state.nudges + 1 < MAX_PIECES:
        return _nudged(state, "Your answer was cut. Go on exactly where it stopped.")
    message = f"the answer was still not complete after {MAX_PIECES} pieces; allow more output tokens, or ask for less"
    error = RunError(type="MaxOutputReached", message=message, context={"limit": "output_tokens"})
    return ended(state, Outcome(status=RunStatus.LIMIT_REACHED, output=state.partial, error=error))


def _asked_again(state: RunState) -> RunState:
    if state.nudges + 1 < MAX_EMPTY:
        return _nudged(state, "Your answer was empty. Use a tool, or give the final answer.")
    error = RunError(type="LLMBadResponseError", message=f"the model answered with nothing {MAX_EMPTY} times in a row")
    return ended(state, Outcome(status=RunStatus.FAILED, output=state.partial, error=error))


def _nudged(state: RunState, text: str) -> RunState:
    return replace(state, nudges=state.nudges + 1, inbox=(*state.inbox, reminder(text)))
