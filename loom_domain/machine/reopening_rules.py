"""Why a run that has ended can't go on, although a person has retried it."""

from collections.abc import Iterator

from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.run.events import RetryRequested


def refused_reopening(result: RunResult, asked: RetryRequested) -> str | None:
    """Return why a run with this result can't go on, or None if it can. The run itself checks the amounts."""
    if result.status is RunStatus.COMPLETED and result.retries:
        return "a retry has already continued it, and it has since completed: start a new run in its session"
    if result.status is RunStatus.COMPLETED:
        return "the run has completed: continue it with `loom fork`, or start a new run in its session"
    if result.turns == 0 and result.status in (RunStatus.FAILED, RunStatus.ABORTED):
        return "the run ended before its first turn: correct the cause and start it again"
    limit = result.error.context.get("limit") if result.error else None
    for name, field, spent, given in _limits(result, asked):
        if name == limit and given is None:
            return f"the run has reached its limit for {name}: name a larger one with `{field}`"
        if given is not None and spent is not None and given <= spent:
            return f"{field} is {given}, but the run has already used {spent}: name a larger limit"
    return None


def _limits(result: RunResult, asked: RetryRequested) -> Iterator[tuple[str, str, float | None, float | None]]:
    """Yield each limit's name in errors, its field, and the amounts that the run has used and that it may now use."""
    budget = asked.budget
    yield "max_turns", "max_turns", result.turns, asked.max_turns
    yield "tokens", "budget.tokens", result.usage.get("total_tokens"), budget.tokens
    yield "cost_usd", "budget.cost_usd", result.cost, budget.cost_usd
    yield "tool_calls", "budget.tool_calls", result.tool_calls, budget.tool_calls
    yield "seconds", "budget.seconds", None, budget.seconds
    yield "turns_in_all", "budget.turns", result.turns, budget.turns
