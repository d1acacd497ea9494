"""What a person reads in the Web UI when they open a run: its state in Markdown. Costs no history."""

from loom_domain.run_state import RunState, cost_of, status_of, waiting_on
from loom_domain.tool_calls import canonical, describe


def markdown(state: RunState) -> str:
    """Status, turn, usage, what the run waits for and how to answer it."""
    cost = cost_of(state)
    lines = [
        f"**{status_of(state)}** · turn {state.turn} of {state.max_turns} · {state.tool_calls} tool calls"
        f" · {state.usage.total_tokens} tokens · {'cost unknown' if cost is None else f'${cost:.4f}'}",
        f"agent `{state.request.agent}`" + (f", model `{state.spec.model}`" if state.spec else ""),
    ]
    if (waiting := waiting_on(state)) is not None:
        lines.append(f"waiting on {_inline(waiting)}")
    for ask in state.asks:
        arguments = canonical(ask.call.arguments)
        shown = arguments if len(arguments) <= 600 else arguments[:600] + "…"
        lines += [
            f"### Approve? {_inline(describe(ask.call))}",
            f"{_inline(ask.plan.reason)}",
            f"```json\n{shown.replace('```', '` ` `')}\n```",
            f'Send the signal `approve` with `{{"call_id": "{ask.call.id}", "digest": "{ask.plan.digest}"}}`, or'
            f' `deny` with `{{"call_id": "{ask.call.id}", "reason": "…"}}`; or run'
            f" `loom approve {state.run_id} {ask.call.id}`.",
        ]
    if state.outcome is not None and state.outcome.error is not None:
        lines.append(f"{state.outcome.error.type}: {_inline(state.outcome.error.message)}")
    return "\n\n".join(lines)


def _inline(text: str) -> str:
    """Text from models and tools as plain text: no markup of its own."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in " ".join(text.split()))
