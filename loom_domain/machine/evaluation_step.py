"""The last step of a run that evaluates its answer. Whatever comes of it, the answer stands, and the run ends with it.

Whether the budget covers it is found where the call is made, and recorded; one that is not covered is left out.

A word from a person, or a pause, goes before the end as it does before any other.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Action
from loom.domain.core.transcript import TranscriptRef
from loom.domain.machine.limits import charged, limit_hit
from loom.domain.machine.steering import note
from loom.domain.run.events import AnswerEvaluated, EvaluationFailed
from loom.domain.run.state import Outcome, Phase, RunState, ended

NOT_COVERED: Final = "The answer is not evaluated: what is left of the budget may not cover it."


def answer_or_evaluation(state: RunState, outcome: Outcome, at: datetime) -> RunState:
    """The run with its answer: at its end, or before the evaluation of that answer."""
    if not state.agent.evaluates or outcome.judged:
        return ended(state, outcome)
    # An evaluation takes no turn, so used-up turns do not forbid it.
    if limit_hit(replace(state, turn=0), at):
        return ended(note(state, Action.BUDGET, at, text=NOT_COVERED), replace(outcome, judged=True))
    return replace(state, phase=Phase.EVALUATING, answer=outcome)


def answer_evaluated(state: RunState, event: AnswerEvaluated) -> RunState:
    """The run after its answer was rated, or its worker asked for the conversation whole."""
    if state.phase is not Phase.EVALUATING or state.answer is None:
        return state
    done = event.evaluated
    if done.uncovered is not None:
        return _over(note(state, Action.BUDGET, event.at, text=NOT_COVERED), state.answer, None)
    if not done.resend:
        return _over(charged(state, done.usage, done.cost_micros, event.at), state.answer, done.metrics)
    if is_whole(state):
        said = {"error": "LoomError", "message": "a worker did not take a conversation that was sent whole"}
        return _over(_told(state, event.at, said), state.answer, None)
    return replace(state, known=TranscriptRef(), produced=frozenset(), send_spec=True)


def evaluation_failed(state: RunState, event: EvaluationFailed) -> RunState:
    """The run without ratings; the stream is told why."""
    if state.phase is not Phase.EVALUATING or state.answer is None:
        return state
    failure = event.failure
    said = {"model": state.agent.model, "error": failure.type, "message": failure.message}
    return _over(_told(state, event.at, said), state.answer, None)


def is_whole(state: RunState) -> bool:
    """Whether what is asked of a worker names nothing that it would have to know."""
    return state.send_spec and state.known == TranscriptRef()


def _told(state: RunState, at: datetime, said: JsonObject) -> RunState:
    noted = note(state, Action.MODEL_CALL, at, turn=state.turn, purpose="evaluation", **said)
    *before, last = noted.notices
    return replace(noted, notices=(*before, replace(last, status="failed")))


def _over(state: RunState, outcome: Outcome, metrics: JsonObject | None) -> RunState:
    judged = replace(outcome, quality=metrics, judged=True)
    if state.hold is not None or state.inbox:
        return replace(state, phase=Phase.READY, answer=judged)
    return ended(state, judged)
