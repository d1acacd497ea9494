"""Handle a limit that a run has reached: request budget from the parent, or sum up in one last answer without tools.

a limit, or a model call that is not covered ──▶ a budget request to the parent ──granted──▶ the run goes on
                                              └─▶ no parent, or refused ──▶ the last answer ──▶ the end
    the deadline ────────────────────────────────────────────────────────────────────────────▶ the end
"""

from datetime import datetime
from typing import Final

from loom.domain.core.frozen import replace
from loom.domain.core.messages import Message, is_from_person, reminder
from loom.domain.core.tasks import Action
from loom.domain.machine.limits import budget_exhausted, limit_hit, own_spend, remaining, time_used
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.run.events import TimeRanOut
from loom.domain.run.state import Outcome, Phase, RunState, WrapUp, ended, note, waiting_on
from loom.domain.tree.budget import BudgetRequest, Spend
from loom.domain.tree.budget_shares import answered, may_request, with_request
from loom.domain.tree.events import BudgetGranted, BudgetRequested

LONGEST_WAIT: Final = 200
"""A run's error describes what the run was waiting for. This is the maximum length of that text."""
ONE_TURN: Final = Spend(tokens=1, micros=1, tool_calls=1, turns=1)
"""The minimum amounts that a further turn needs."""


def stopped(state: RunState, at: datetime) -> RunState | None:
    """Return the next state of a run that has reached a limit: it requests more budget, gives its last answer, or ends.

    Returns None if the run can begin another turn.
    """
    outcome = limit_hit(state, at)
    if outcome is None:
        return None
    return requesting_budget(state, ONE_TURN) or summing_up(state, outcome, at)


def summing_up(state: RunState, outcome: Outcome, at: datetime) -> RunState:
    """Return the next state of a run that must give its last answer. If the run was prepared by a version that doesn't
    support last answers, it ends.
    """
    if state.tree.limits is None or state.answer.wrap_up is not None:
        return ended(state, outcome)
    answer = replace(state.answer, wrap_up=WrapUp(outcome=outcome), held=None)
    state = replace(state, phase=Phase.READY, answer=answer)
    why = outcome.error.message if outcome.error else outcome.status.value
    return note(state, Action.BUDGET, at, text=f"The last answer, without tools: {why}")


def last_turn_reminder(state: RunState, wrap_up: WrapUp) -> tuple[RunState, Message]:
    """Return the run in its last turn, and the reminder that asks the model for its last answer."""
    why = wrap_up.outcome.error.message if wrap_up.outcome.error else "the run has to end"
    told = (
        f"This is your last answer: {why} You have no tools any more. Say what you have found or done, what is left to"
        " do, and whatever else must not be lost."
    )
    answer = replace(state.answer, wrap_up=replace(wrap_up, turn=state.turn))
    return replace(state, answer=answer), reminder(told)


def last_answer_given(state: RunState, wrap_up: WrapUp, reply: ModelReply) -> RunState:
    """Return the next state of a run that has given its last answer."""
    text = state.answer.partial + (reply.message.text if reply.message else "")
    outcome = replace(wrap_up.outcome, output=text) if text.strip() else wrap_up.outcome
    return ended(replace(state, answer=replace(state.answer, partial="")), outcome)


def call_not_covered(state: RunState, need: Spend, at: datetime) -> RunState:
    """Return the next state of a run whose remaining budget did not cover a model call. The call was not sent to the
    provider.
    """
    tries = replace(state.tries, uncovered=state.tries.uncovered + 1)
    state = replace(state, tries=tries)
    return requesting_budget(state, need) or last_answer_due(state, _uncovered(state, need), at)


def last_answer_due(state: RunState, outcome: Outcome, at: datetime) -> RunState:
    """Return the next state of a run that couldn't make its model call and must end with `outcome`: it gives its last
    answer in the same turn, or ends if that was the call for its last answer.
    """
    if state.answer.wrap_up is not None:
        return ended(state, state.answer.wrap_up.outcome)
    state = summing_up(state, outcome, at)
    if state.answer.wrap_up is None:
        return state
    state, told = last_turn_reminder(state, state.answer.wrap_up)
    return replace(state, phase=Phase.THINKING, conversation=state.conversation.extended([told]))


def time_ran_out(state: RunState, event: TimeRanOut) -> RunState:
    """Return the next state of a run that has reached its deadline. The run ends with its answer, its draft, or else
    the model's last text.
    """
    at_work = waiting_on(state)
    told = time_used(state, event.at) + (f", while it waited on {at_work[:LONGEST_WAIT]}" if at_work else "")
    state = replace(state, hold=None)
    if state.answer.wrap_up is not None:
        return ended(state, state.answer.wrap_up.outcome)
    answer = state.answer.held if state.phase is Phase.EVALUATING else state.answer.draft
    if answer is not None and not any(is_from_person(message) for message in state.inbox):
        return ended(state, replace(answer, judged=True))
    return ended(state, budget_exhausted("seconds", told))


def requesting_budget(state: RunState, need: Spend) -> RunState | None:
    """Return the run with a budget request to its parent, or None if the run has no parent or the parent has already
    refused.
    """
    lack = remaining(state).shortfall(need)
    if not lack or state.answer.wrap_up is not None or not may_request(state.tree, lack):
        return None
    request = BudgetRequest(run_id=state.run_id, number=0, need=need)
    return replace(state, tree=with_request(state.tree, own_spend(state), request, state.run_id))


def budget_requested(state: RunState, event: BudgetRequested) -> RunState:
    """Return the next state of a run whose child has requested budget."""
    return replace(state, tree=with_request(state.tree, own_spend(state), event.request, state.run_id))


def budget_answered(state: RunState, event: BudgetGranted) -> RunState:
    """Return the next state of a run whose parent has answered its budget request."""
    tree = answered(state.tree, own_spend(state), event.number, event.granted, state.run_id)
    return replace(state, tree=tree)


def _uncovered(state: RunState, need: Spend) -> Outcome:
    rest = remaining(state)
    name = "tokens" if rest.tokens is not None and need.tokens > rest.tokens else "cost_usd"
    scale = 1 if name == "tokens" else 1_000_000
    amounts = (need.tokens, rest.tokens) if name == "tokens" else (need.micros, rest.micros)
    needed, there = (f"{(amount or 0) / scale:g}" for amount in amounts)
    return budget_exhausted(name, f"the next model call may take {needed}, and {there} are left")
