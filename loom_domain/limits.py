"""What a run may use up before it has to end: turns, tokens, money, tool calls, time."""

from datetime import datetime
from typing import Final

from loom_domain.requests import RunError, RunStatus
from loom_domain.run_state import Outcome, RunState, cost_of

WARN_AT: Final = 0.8


def limit_hit(state: RunState, at: datetime) -> Outcome | None:
    """The outcome of a run that may not begin another turn, or None."""
    if state.turn >= state.max_turns:
        return turns_used_up(state)
    for name, spent, limit in _budget(state, at):
        if limit is not None and spent >= limit:
            message = (
                f"the budget for {name} is spent: {_number(spent)} of {_number(limit)}. Start again with a larger one."
            )
            return Outcome(
                status=RunStatus.BUDGET_EXHAUSTED,
                error=RunError(type="BudgetExceededError", message=message, context={"limit": name}),
            )
    return None


def turns_used_up(state: RunState, pending: tuple[str, ...] = ()) -> Outcome:
    """The outcome of a run whose turns are spent, with the calls that it still wanted to make."""
    answered = (
        "without a final answer" if state.answer is None else "with an answer that does not know what came in last"
    )
    unfinished = f" It still wanted to run: {'; '.join(pending)}." if pending else ""
    return Outcome(
        status=RunStatus.LIMIT_REACHED,
        error=RunError(
            type="MaxTurnsReached",
            message=f"stopped after {state.turn} turns {answered}.{unfinished}"
            " Start again with a larger max_turns, or split the task.",
            context={"limit": "max_turns", "pending": list(pending)},
        ),
    )


def warning(state: RunState, at: datetime) -> str | None:
    """A reminder for the model when four fifths of something are spent; given once."""
    if state.warned:
        return None
    nearly = [
        f"{name}: {_number(spent)} of {_number(limit)}"
        for name, spent, limit in (*_budget(state, at), ("turns", state.turn, state.max_turns))
        if limit is not None and spent >= WARN_AT * limit
    ]
    return f"Nearly spent — {', '.join(nearly)}. Come to a conclusion soon." if nearly else None


def _budget(state: RunState, at: datetime) -> tuple[tuple[str, float, float | None], ...]:
    budget = state.request.budget
    return (
        ("tokens", state.usage.total_tokens, budget.tokens),
        ("cost_usd", cost_of(state) or 0.0, budget.cost_usd),
        ("tool_calls", state.tool_calls, budget.tool_calls),
        ("seconds", (at - state.started_at).total_seconds(), budget.seconds),
    )


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
