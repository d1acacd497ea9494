"""What a person reads in the Web UI when they open a run: its state in Markdown. Costs no history.

Much of it is written by models and tools, ids of calls included, so nothing of theirs may become markup, or a command
other than the one it stands in.
"""

import json
import shlex
from typing import Final

from loom_domain.run_state import RunState, cost_of, expires_at, status_of, waiting_on
from loom_domain.tool_calls import OpenCall, canonical, describe

_ARGUMENTS: Final = 600
"""Characters of arguments that are shown."""


def markdown(state: RunState) -> str:
    """Status, turn, usage, what the run waits for and how to answer it."""
    cost = cost_of(state)
    lines = [
        f"**{status_of(state)}** · turn {state.turn} of {state.max_turns} · {state.tool_calls} tool calls"
        f" · {state.usage.total_tokens} tokens · {'cost unknown' if cost is None else f'${cost:.4f}'}",
        f"agent {_code(state.request.agent)}" + (f", model {_code(state.spec.model)}" if state.spec else ""),
    ]
    if (waiting := waiting_on(state)) is not None:
        lines.append(f"waiting on {_inline(waiting)}")
    if state.outcome is None:
        lines += [line for call in state.asks for line in _ask(state, call)]
        if state.hold is not None:
            lines.append(f"To go on: the signal `resume`, or {_code(f'loom resume {shlex.quote(state.run_id)}')}.")
    elif state.outcome.error is not None:
        lines.append(f"{_inline(state.outcome.error.type)}: {_inline(state.outcome.error.message)}")
    return "\n\n".join(lines)


def _ask(state: RunState, ask: OpenCall) -> list[str]:
    arguments = canonical(ask.call.arguments)
    shown = arguments if len(arguments) <= _ARGUMENTS else arguments[:_ARGUMENTS] + "…"
    yes = json.dumps({"call_id": ask.call.id, "digest": ask.plan.digest})
    no = json.dumps({"call_id": ask.call.id, "reason": "…"}, ensure_ascii=False)
    command = f"loom approve {shlex.quote(state.run_id)} {shlex.quote(ask.call.id)}"
    expiry = expires_at(state, ask)
    return [
        f"### Approve? {_inline(describe(ask.call))}",
        f"Why: {_inline(ask.plan.reason)}" + (f" · denied if unanswered until {expiry.isoformat()}" if expiry else ""),
        # On one line, as JSON escapes line breaks: nothing in it can end the fence.
        f"```json\n{shown.replace('```', '` ` `')}\n```",
        f"Send the signal `approve` with {_code(yes)}, or `deny` with {_code(no)}; or run {_code(command)}.",
    ]


def _inline(text: str) -> str:
    """Text from models and tools as plain text: no markup of its own."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|~!&" else c for c in " ".join(text.split()))


def _code(text: str) -> str:
    """A code span that its text cannot end."""
    return f"`{' '.join(text.split()).replace('`', chr(0x2019))}`"
