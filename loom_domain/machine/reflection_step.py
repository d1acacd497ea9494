"""The `reflect` pattern: the model critiques and revises a draft of the final answer before the run ends.

    draft ──▶ critique ──approved──▶ the answer
               │    ▲
               └──▶ revision          at most `rounds` critiques

If a person sends a message during a critique, the draft is discarded because it doesn't take the message into account.
"""

from datetime import datetime

from loom.domain.agents.reflection import CRITICISE, REVISE, Reflection
from loom.domain.core.frozen import replace
from loom.domain.core.messages import is_from_person, reminder
from loom.domain.machine.evaluation_step import answer_or_evaluation
from loom.domain.machine.tool_results import end_calls
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.run.state import Outcome, RunState


def is_criticised(state: RunState, outcome: Outcome) -> bool:
    """Whether this answer is a draft that must be critiqued first."""
    reflection = state.answer.reflection
    return bool(reflection.stage) and reflection.round < state.agent.rounds and not outcome.judged


def with_critique(state: RunState, draft: Outcome) -> RunState:
    """Return the next state of a run that has a draft. The draft is critiqued in the next turn."""
    reflection = Reflection(stage="critique", round=state.answer.reflection.round + 1)
    answer = replace(state.answer, reflection=reflection, draft=draft)
    return replace(state, answer=answer, inbox=(reminder(CRITICISE),))


def draft_criticised(state: RunState, reply: ModelReply, at: datetime) -> tuple[RunState, Outcome | None]:
    """Return the next state of a run whose draft has been critiqued. If the critique approved the draft, also return it
    as the answer.
    """
    if (draft := state.answer.draft) is None:
        return state, None
    state = end_calls(state, at, "not run: this turn was for judging the answer only")
    if has_word_from_person(state):
        return interrupted(state), None
    reflection = replace(state.answer.reflection, stage="revision")
    if reply.approves:
        reflection = replace(reflection, round=state.agent.rounds)
        return replace(state, answer=replace(state.answer, reflection=reflection)), draft
    return replace(state, answer=replace(state.answer, reflection=reflection), inbox=(reminder(REVISE),)), None


def with_draft(state: RunState, at: datetime) -> RunState | None:
    """Return a run that cannot continue, with its draft as the answer.

    Returns None if there is no draft or if the draft doesn't take a new message into account.
    """
    if state.answer.draft is None or has_word_from_person(state):
        return None
    return answer_or_evaluation(replace(state, inbox=()), state.answer.draft, at)


def has_word_from_person(state: RunState) -> bool:
    """Whether a person has sent a message that the model has not read."""
    return any(is_from_person(message) for message in state.inbox)


def interrupted(state: RunState) -> RunState:
    """Return the run without its draft, which is obsolete because of a new message. The next answer is a new draft."""
    reflection = Reflection(stage="draft", round=state.answer.reflection.round - 1)
    heard = tuple(message for message in state.inbox if is_from_person(message))
    return replace(state, answer=replace(state.answer, reflection=reflection, draft=None), inbox=heard)
