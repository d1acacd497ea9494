"""Coming to an end when something is used up: more from the parent, else one last answer without tools, which sums up.

a limit, or a model call that is not covered ──▶ a wish to the parent ──answer──▶ on as before
                                              └─▶ nobody to ask, or refused ──▶ the last answer ──▶ the end
    the end of the run's time ───────────────────────────────────────────────────────────────▶ the end
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from loom.domain.core.messages import Message, is_from_person, reminder
from loom.domain.core.tasks import Action
from loom.domain.machine.limits import exhausted, left, limit_hit, spent_by, time_told
from loom.domain.machine.steering import note
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.run.deadlines import hard_end
from loom.domain.run.state import Outcome, Phase, RunState, WrapUp, ended, waiting_on
from loom.domain.tree.budget import Spend, Want
from loom.domain.tree.budget_shares import answered, may_ask, wished
from loom.domain.tree.events import BudgetAnswered, BudgetWanted

LONGEST_WAIT: Final = 200
"""Characters of what a run was waiting on that its error tells."""
ONE_TURN: Final = Spend(tokens=1, micros=1, tool_calls=1, turns=1)
"""The least that another turn takes."""


def stopped(state: RunState, at: datetime) -> RunState | None:
    """The run at a limit: with a wish, summing up, or at its end; None where it may begin another turn."""
    outcome = limit_hit(state, at)
    if outcome is None:
        return None
    return wishing(state, ONE_TURN) or summing_up(state, outcome, at)


def summing_up(state: RunState, outcome: Outcome, at: datetime) -> RunState:
    """The run with one answer left to give; at its end where it was begun by a version that knew of none."""
    if state.tree.limits is None or state.wrap_up is not None:
        return ended(state, outcome)
    state = replace(state, wrap_up=WrapUp(outcome=outcome), phase=Phase.READY, answer=None)
    why = outcome.error.message if outcome.error else outcome.status.value
    return note(state, Action.BUDGET, at, text=f"The last answer, without tools: {why}")


def last_words(state: RunState, wrap_up: WrapUp) -> tuple[RunState, Message]:
    """The run in its last turn, with what the model is told of it."""
    why = wrap_up.outcome.error.message if wrap_up.outcome.error else "the run has to end"
    told = (
        f"This is your last answer: {why} You have no tools any more. Say what you have found or done, what is left to"
        " do, and whatever else must not be lost."
    )
    return replace(state, wrap_up=replace(wrap_up, turn=state.turn)), reminder(told)


def summed_up(state: RunState, wrap_up: WrapUp, reply: ModelReply) -> RunState:
    """The run after its last answer."""
    text = state.partial + (reply.message.text if reply.message else "")
    outcome = replace(wrap_up.outcome, output=text) if text.strip() else wrap_up.outcome
    return ended(replace(state, partial=""), outcome)


def take_shortage(state: RunState, need: Spend, at: datetime) -> RunState:
    """The run after a model call that what is left does not cover; nothing was sent."""
    tries = replace(state.tries, uncovered=state.tries.uncovered + 1)
    state = replace(state, tries=tries)
    if state.wrap_up is not None:
        return ended(state, state.wrap_up.outcome)
    if (wishful := wishing(state, need)) is not None:
        return wishful
    state = summing_up(state, _uncovered(state, need), at)
    if state.wrap_up is None:
        return state
    state, told = last_words(state, state.wrap_up)
    return replace(state, phase=Phase.THINKING, transcript=state.transcript.extended([told]))


def out_of_time(state: RunState, at: datetime) -> RunState:
    """The run at the end of its time, with what it has: an answer, a draft, else what it said last."""
    if state.outcome is not None or hard_end(state) is None:
        return state
    at_work = waiting_on(state)
    told = time_told(state, at) + (f", while it waited on {at_work[:LONGEST_WAIT]}" if at_work else "")
    state = replace(state, hold=None)
    if state.wrap_up is not None:
        return ended(state, state.wrap_up.outcome)
    answer = state.answer if state.phase is Phase.EVALUATING else state.draft
    if answer is not None and not any(is_from_person(message) for message in state.inbox):
        return ended(state, replace(answer, judged=True))
    return ended(state, exhausted("seconds", told))


def wishing(state: RunState, need: Spend) -> RunState | None:
    """The run with a wish for what it lacks of its need; None where there is nobody to ask, or the answer was no."""
    lack = left(state).lacks(need)
    if not lack or state.wrap_up is not None or not may_ask(state.tree, lack):
        return None
    want = Want(run_id=state.run_id, number=0, need=need)
    return replace(state, tree=wished(state.tree, spent_by(state), want, state.run_id))


def take_want(state: RunState, event: BudgetWanted) -> RunState:
    """The run after a child asked for more."""
    if not any(child.run_id == event.want.run_id and not child.ended for child in state.tree.children):
        return state
    return replace(state, tree=wished(state.tree, spent_by(state), event.want, state.run_id))


def take_answer(state: RunState, event: BudgetAnswered) -> RunState:
    """The run after its parent answered a wish."""
    tree = answered(state.tree, spent_by(state), event.number, event.granted, state.run_id)
    return replace(state, tree=tree)


def _uncovered(state: RunState, need: Spend) -> Outcome:
    rest = left(state)
    name = "tokens" if rest.tokens is not None and need.tokens > rest.tokens else "cost_usd"
    scale = 1 if name == "tokens" else 1_000_000
    amounts = (need.tokens, rest.tokens) if name == "tokens" else (need.micros, rest.micros)
    needed, there = (f"{(amount or 0) / scale:g}" for amount in amounts)
    return exhausted(name, f"the next model call may take {needed}, and {there} are left")
