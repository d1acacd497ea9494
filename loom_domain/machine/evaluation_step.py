"""Evaluation: the model rates the final answer before the run ends. The ratings never change the answer.

The activity checks whether the budget covers the evaluation, and skips the evaluation if it doesn't. Until the run has
ended, a person can still send a message or pause the run.
"""

from datetime import datetime
from typing import Final

from loom.domain.core.frozen import replace
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Action
from loom.domain.machine.limits import charged, charged_for_failure, limit_hit
from loom.domain.run.events import AnswerEvaluated, EvaluationFailed
from loom.domain.run.state import Outcome, Phase, RunState, ended, note

NOT_COVERED: Final = "The answer is not evaluated: what is left of the budget may not cover it."


def answer_or_evaluation(state: RunState, outcome: Outcome, at: datetime) -> RunState:
    """Return the next state of a run that has its answer. The run either ends or evaluates the answer first."""
    if not state.agent.evaluates or outcome.judged:
        return ended(state, outcome)
    # An evaluation takes no turn, so it can run when no turns are left.
    if limit_hit(replace(state, turn=0), at):
        return ended(note(state, Action.BUDGET, at, text=NOT_COVERED), replace(outcome, judged=True))
    return replace(state, phase=Phase.EVALUATING, answer=replace(state.answer, held=outcome))


def answer_evaluated(state: RunState, event: AnswerEvaluated) -> RunState:
    """Return the next state of a run after its answer was rated or after the worker asked for the full conversation."""
    if state.answer.held is None:
        return state
    done = event.evaluated
    if done.uncovered is not None:
        return _evaluated(note(state, Action.BUDGET, event.at, text=NOT_COVERED), state.answer.held, None)
    if not done.resend:
        return _evaluated(charged(state, done.usage, done.cost_micros, event.at), state.answer.held, done.metrics)
    if state.conversation.is_sent_whole:
        said = {"error": "LoomError", "message": "a worker did not take a conversation that was sent whole"}
        return _evaluated(_with_failure_noted(state, event.at, said), state.answer.held, None)
    return replace(state, conversation=state.conversation.sent_whole(state.conversation.spec_digest))


def evaluation_failed(state: RunState, event: EvaluationFailed) -> RunState:
    """Return the run without ratings. A notice on the stream gives the reason."""
    held, failure = state.answer.held, event.failure
    if held is None:
        return state
    state = charged_for_failure(state, failure, event.at)
    said = {"model": state.agent.model, "error": failure.type, "message": failure.message}
    return _evaluated(_with_failure_noted(state, event.at, said), held, None)


def _with_failure_noted(state: RunState, at: datetime, said: JsonObject) -> RunState:
    noted = note(state, Action.MODEL_CALL, at, turn=state.turn, purpose="evaluation", **said)
    *before, last = noted.notices.pending
    failed = (*before, replace(last, status="failed"))
    return replace(noted, notices=replace(noted.notices, pending=failed))


def _evaluated(state: RunState, outcome: Outcome, metrics: JsonObject | None) -> RunState:
    judged = replace(outcome, quality=metrics, judged=True)
    if state.hold is not None or state.inbox:
        return replace(state, phase=Phase.READY, answer=replace(state.answer, held=judged))
    return ended(state, judged)
