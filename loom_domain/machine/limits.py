"""The limits of a run: turns, tokens, money, tool calls, time, and sub-agents.

The limits apply to the whole tree. Amounts that sub-agents have spent count toward the limits. Amounts lent to
sub-agents also count as long as the sub-agents are running. Before each model call, `activities/budget_reservation.py`
caps the call at the remaining budget, so that the budget is never exceeded.

Time is measured from the start of the run, including pauses and time spent waiting for people. In a chat, turns and
time are measured from the start of the work on each message:

    began ──────────────────────────────▶ last call ────────▶ deadline
           turns, tools, sub-agents, asks            one last       the run is forced to end
                                                     answer

A run reserves the time after `last call` for itself, so its sub-agents must end before that point.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from loom.domain.core.frozen import replace
from loom.domain.core.messages import Usage
from loom.domain.core.requests import Budget, RunError, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import failed
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import Outcome, RunState, cost_of, note, total_tool_calls, total_usage, with_calls
from loom.domain.tree.budget import WRAP_UP_TOKENS, Share, Spend
from loom.domain.tree.lineage import TreeLimits
from loom.domain.tree.tree import Tree, left_of, spent_by_children

TURNS: Final = "MaxTurnsReached"
"""The error of a run that has used all its turns."""
WARN_AT: Final = 0.8
LAST_PART: Final = 0.1
"""The fraction of a run's time that is reserved for its last answer."""
LONGEST: Final = timedelta(seconds=30)
"""The maximum time that is reserved for the last answer."""


def share_of(budget: Budget, limits: TreeLimits) -> Share:
    """Return the amounts that a root run and its descendants can spend with this budget."""
    children = limits.children if budget.children is None else min(budget.children, limits.children)
    return Share(
        tokens=budget.tokens,
        micros=None if budget.cost_usd is None else round(budget.cost_usd * 1_000_000),
        tool_calls=budget.tool_calls,
        turns=budget.turns,
        children=children,
    )


def with_share_and_limits(tree: Tree, budget: Budget, limits: TreeLimits | None) -> Tree:
    """Return a prepared run's tree with its limits and its share. A child's share is lent by its parent, and a root
    run's share is set by its request.
    """
    if limits is None:
        return tree
    if tree.lineage is not None:
        return replace(tree, limits=limits, share=tree.lineage.share)
    deep = limits.depth if budget.depth is None else min(budget.depth, limits.depth)
    return replace(tree, limits=replace(limits, depth=deep), share=share_of(budget, limits))


def own_spend(state: RunState) -> Spend:
    """Return the amounts that the run itself has spent."""
    return Spend(
        tokens=state.spending.usage.total_tokens,
        micros=state.spending.cost_micros or 0,
        tool_calls=state.spending.tool_calls,
        turns=state.turns,
    )


def _spent_below(state: RunState) -> Spend:
    return spent_by_children(state.tree) if state.tree.children else Spend()


def remaining(state: RunState) -> Share:
    """Return the amounts that the run can still spend or lend."""
    return left_of(state.tree, own_spend(state))


def allowance(state: RunState) -> Share | None:
    """Return the budget that is available for the next model call, or None if there is no limit."""
    whole = state.tree.share
    if state.tree.limits is None or (whole.tokens is None and whole.micros is None):
        return None
    share = remaining(state)
    return Share(tokens=share.tokens, micros=share.micros)


def reserve_for_last_answer(state: RunState, reserved: Spend) -> Spend:
    """Return the budget that the run reserves for its own last answer, estimated from its latest call."""
    return Spend(tokens=state.window.tokens + WRAP_UP_TOKENS, micros=reserved.micros, turns=1)


def limit_hit(state: RunState, at: datetime) -> Outcome | None:
    """Return the outcome of a run that has reached a limit, or None for any other run."""
    if state.turn_state.is_final:
        return turns_used_up(state)
    for name, spent, limit in _budget(state, at):
        if limit is not None and spent >= limit:
            return budget_exhausted(name, f"{_number(spent)} of {_number(limit)}")
    latest = last_call(state)
    if latest is not None and at >= latest:
        return budget_exhausted("seconds", f"{time_used(state, at)}, and the rest is for a last answer")
    return None


def time_used(state: RunState, at: datetime) -> str:
    """Describe how much of its time the run has used."""
    end = deadline(state)
    whole = "without limit" if end is None else _number((end - _began(state)).total_seconds())
    return f"{_number(round((at - _began(state)).total_seconds(), 1))} of {whole}"


def within_tool_calls(state: RunState) -> RunState:
    """Return the run without the calls that exceed its tool call budget."""
    if state.tree.limits is None or state.tree.share.tool_calls is None:
        return state
    most = remaining(state).tool_calls or 0
    beyond = [call.call.id for call in state.calls.open if call.result is None][max(0, most) :]
    not_run = failed(f"not run: the budget for tool calls covered {most} more", "unavailable")
    return with_calls(state, lambda c: replace(c, result=not_run) if c.call.id in beyond else c)


def turns_used_up(state: RunState, pending: tuple[str, ...] = ()) -> Outcome:
    """Return the outcome of a run that has used all its turns. The outcome lists the calls that the run did not
    make.
    """
    answered = (
        "without a final answer" if state.answer.held is None else "with an answer that does not know what came in last"
    )
    turns = state.turns - _earlier_turns(state)
    unfinished = f" It still wanted to run: {'; '.join(pending)}." if pending else ""
    return Outcome(
        status=RunStatus.LIMIT_REACHED,
        error=RunError(
            type=TURNS,
            message=f"stopped after {turns} {'turn' if turns == 1 else 'turns'} {answered}.{unfinished}",
            context={"limit": "max_turns", "pending": list(pending)},
        ),
    )


def budget_exhausted(name: str, told: str) -> Outcome:
    """Return the outcome of a run that has exhausted its budget in one dimension."""
    message = f"the budget for {name} is spent: {told}."
    return Outcome(
        status=RunStatus.BUDGET_EXHAUSTED,
        error=RunError(type="BudgetExceededError", message=message, context={"limit": name}),
    )


def charged(state: RunState, usage: Usage, cost_micros: int | None, at: datetime) -> RunState:
    """Return the run with a model call charged to it. If a price is unknown and the run has a dollar budget, one notice
    is added.
    """
    before = state.spending
    if before.cost_micros is not None and cost_micros is None and state.request.budget.cost_usd is not None:
        text = "The price of this model is unknown: the budget in dollars cannot be kept. Set one in tokens."
        state = note(state, Action.BUDGET, at, text=text)
    return replace(state, spending=before.charged(usage, cost_micros))


def charged_for_failure(state: RunState, failure: Failure, at: datetime) -> RunState:
    """Return the run with the failed model call charged to it. Providers charge for replies that break off."""
    return state if failure.used is None else charged(state, *failure.used, at)


def warning(state: RunState, at: datetime) -> str | None:
    """Return a one-time reminder for the model once four fifths of a limit have been used.

    A sub-agent is reminded only of its time and turns, because it can request more of everything else from its parent.
    """
    if state.spending.warned:
        return None
    own = () if state.tree.lineage is None else ("seconds", "turns")
    turns = ("turns", state.turns - _earlier_turns(state), state.max_turns)
    nearly = [
        f"{name}: {_number(spent)} of {_number(limit)}"
        for name, spent, limit in (*_budget(state, at), turns, _sub_agents(state))
        if limit is not None and spent >= WARN_AT * limit and (not own or name in own)
    ]
    return f"Nearly spent — {', '.join(nearly)}. Come to a conclusion soon." if nearly else None


def _sub_agents(state: RunState) -> tuple[str, float, float | None]:
    return ("sub_agents", _spent_below(state).children, state.tree.share.children or None)


def _budget(state: RunState, at: datetime) -> Sequence[tuple[str, float, float | None]]:
    share = share_of(state.request.budget, TreeLimits()) if state.tree.limits is None else state.tree.share
    end = deadline(state)
    seconds = None if end is None else (end - _began(state)).total_seconds()
    return (
        ("tokens", total_usage(state).total_tokens, share.tokens),
        ("cost_usd", cost_of(state) or 0.0, None if share.micros is None else share.micros / 1_000_000),
        ("tool_calls", total_tool_calls(state), share.tool_calls),
        ("seconds", (at - _began(state)).total_seconds(), seconds),
        ("turns_in_all", state.turns + _spent_below(state).turns, share.turns),
    )


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def deadline(state: RunState) -> datetime | None:
    """Return the run's deadline."""
    if state.tree.lineage is not None:
        return state.tree.lineage.deadline
    seconds = state.request.budget.seconds
    if state.chat is not None and state.chat.is_waiting:
        return None
    return None if seconds is None else _began(state) + timedelta(seconds=seconds)


def _began(state: RunState) -> datetime:
    return state.began_at if state.chat is None else state.chat.since


def _earlier_turns(state: RunState) -> int:
    return 0 if state.chat is None else state.chat.before.turns


def hard_end(state: RunState) -> datetime | None:
    """Return the time at which the run is forced to end. None if the run was prepared by an older version that doesn't
    force runs to end.
    """
    return None if state.tree.limits is None else deadline(state)


def last_call(state: RunState) -> datetime | None:
    """Return the time after which the run can't begin any work except its last answer."""
    end = hard_end(state)
    if end is None:
        return deadline(state)
    whole = max(timedelta(), end - _began(state))
    return end - min(LAST_PART * whole, LONGEST)
