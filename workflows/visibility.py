"""Search attributes for listing runs, and the details of a run in the Web UI.

Each change to a search attribute adds a history event, so there are only a few attributes. The details are in Markdown
and add no events. They contain text from models and tools, including call ids. This text must be escaped, so that it
can't become markup or change the command that contains it.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from loom.domain.core.messages import JsonObject, ToolCall, canonical
from loom.domain.core.repositories import repository_line, workspace_view
from loom.domain.core.requests import ParkedOn, RunStatus
from loom.domain.core.search_attributes import SEARCH_ATTRIBUTES
from loom.domain.core.tool_calls import describe
from loom.domain.crews.log import last_choice
from loom.domain.machine.limits import deadline
from loom.domain.run.pending_approvals import open_asks
from loom.domain.run.state import (
    Parked,
    RunState,
    cost_of,
    status_of,
    total_tool_calls,
    total_usage,
    waiting_on,
)
from loom.domain.tree.tree import Child, TreeAsk

_WAITING: Final = {
    RunStatus.WAITING_FOR_APPROVAL: "approval",
    RunStatus.WAITING_FOR_INPUT: "input",
    RunStatus.PAUSED: "resume",
}


_ARGUMENTS: Final = 600
"""The maximum number of argument characters to show."""
_TEXT: Final = 2_000
"""The maximum number of characters of any other text to show."""


_METADATA: Final = "__temporal_workflow_metadata"
"""The query with which the Web UI reads a workflow's details."""


def show_details(current: Callable[[], RunState]) -> None:
    """Show the run's details in the Web UI. They are rendered for each query, and not in each workflow task."""
    metadata = workflow.get_query_handler(_METADATA)
    if metadata is None:
        return

    def detailed() -> Any:  # the SDK's WorkflowMetadata
        known = metadata()
        known.current_details = markdown(current())
        return known

    workflow.set_query_handler(_METADATA, detailed)


def attributes_of(state: RunState) -> dict[str, str | float]:
    """Return the run's search attributes that are registered on the server. They change only with the run's status
    and with what it waits for.
    """
    status = status_of(state)
    wanted: dict[str, str | float] = {
        "LoomAgent": state.request.agent,
        "LoomSession": state.request.session_id or state.run_id,
        "LoomStatus": status.value,
        "LoomModel": state.spec.model if state.spec else "",
        "LoomWaitingOn": _waiting_on(state, status),
        "LoomRootRun": state.tree.lineage.root_run_id if state.tree.lineage else state.run_id,
    }
    if state.request.tenant is not None:
        wanted["LoomTenant"] = state.request.tenant
    cost = cost_of(state)
    if state.outcome is not None and not state.is_answer and cost is not None:
        wanted["LoomCostUsd"] = cost
    return {name: value for name, value in wanted.items() if name in state.environment.search_attributes}


def _waiting_on(state: RunState, status: RunStatus) -> str:
    if state.parked is not None and status is RunStatus.RUNNING:
        return state.parked.on.value
    return _WAITING.get(status, "tenant" if state.admission == "waiting" else "none")


def attribute_updates(changed: Mapping[str, str | float]) -> Sequence[SearchAttributeUpdate[Any]]:
    """Convert changed attributes to the form that Temporal's upsert accepts."""
    return [_key(name).value_set(value) for name, value in changed.items()]


def _key(name: str) -> SearchAttributeKey[Any]:
    if SEARCH_ATTRIBUTES[name] == "Double":
        return SearchAttributeKey.for_float(name)
    return SearchAttributeKey.for_keyword(name)


def markdown(state: RunState) -> str:
    """Describe the status, the usage and budget, the events that the run is waiting for, and how to respond."""
    lines = [
        " · ".join((f"**{status_of(state)}**", *_spent(state))),
        f"agent {_code(state.request.agent)}"
        + (f", model {_code(state.spec.model)}" if state.spec and state.spec.model else "")
        + _how(state),
    ]
    if (lineage := state.tree.lineage) is not None:
        lines.append(f"sub-agent of {_code(lineage.parent_run_id)}, for: {_inline(lineage.description)}")
    if (repository := workspace_view(state.checkout, state.change)) is not None:
        lines.append(_inline(repository_line(repository)))
    if (waiting := waiting_on(state)) is not None:
        lines.append(f"waiting on {_inline(waiting)}")
    lines += [_child(child) for child in state.tree.children]
    if state.spec is not None and state.spec.crew is not None:
        lines += _choice(last_choice(state.transcript.messages))
    return "\n\n".join((*lines, *_what_to_do(state)))


def _what_to_do(state: RunState) -> Iterator[str]:
    """Describe how to respond to a waiting run or, if the run has ended, the reason for its failure."""
    if state.outcome is not None:
        if (error := state.outcome.error) is not None:
            yield f"{_inline(error.type)}: {_inline(error.message)}"
        return
    if state.parked is not None:
        yield from _parked(state.run_id, state.parked, state.retry_at)
    if state.asks or state.asks_below:
        for ask in open_asks(state):
            yield from _ask(state.run_id, ask)
    if state.question is not None:
        told = _code(json.dumps({"text": "…"}, ensure_ascii=False))
        yield f"To answer, send the `send_message` signal with {told}, or run {_send(state.run_id)}."
    if state.hold is not None:
        yield f"To continue, send the `resume` signal, or run {_code(f'loom resume {shlex.quote(state.run_id)}')}."


def _spent(state: RunState) -> Iterator[str]:
    """Describe the amounts that the run and its descendants have spent, and the limits in its budget."""
    budget, children, cost = state.request.budget, state.tree.children, cost_of(state)
    yield f"turn {state.turns} of {state.max_turns}"
    if budget.turns is not None:
        yield f"{_of(state.turns + sum(child.all_turns for child in children), budget.turns)} turns in all"
    yield f"{_of(total_tool_calls(state), budget.tool_calls)} tool calls"
    if budget.children is not None:
        yield f"{_of(sum(1 + child.sub_agents for child in children), budget.children)} sub-agents"
    yield f"{_of(total_usage(state).total_tokens, budget.tokens)} tokens"
    most = "" if budget.cost_usd is None else f" of ${budget.cost_usd:.4f}"
    yield ("cost unknown" if cost is None else f"${cost:.4f}") + most
    if (end := deadline(state)) is not None and state.outcome is None:
        yield f"time until {end.isoformat(timespec='seconds')}"


def _of(spent: int, limit: int | None) -> str:
    return f"{spent:,}" if limit is None else f"{spent:,} of {limit:,}"


def _child(child: Child) -> str:
    agent, about = _inline(child.agent), _inline(child.description)
    line = f"- {child.status} · {agent}: {about} · {_code(child.run_id)}"
    if child.status is not RunStatus.WAITING_FOR_INPUT:
        return line
    return f"{line} · {_inline(child.waiting_on)} · {_send(child.run_id)}"


def _send(run_id: str) -> str:
    return _code(f'loom send {shlex.quote(run_id)} "your answer"')


def _how(state: RunState) -> str:
    if state.spec is None or state.spec.pattern == "react":
        return ""
    branches = f"{len(state.spec.crew.members)} branches, " if state.spec.crew else ""
    return f", pattern {state.spec.pattern} ({branches}{state.spec.rounds} round{'s' * (state.spec.rounds != 1)})"


def _choice(chosen: JsonObject | None) -> list[str]:
    """Describe a crew's latest choice and the scores of the alternatives."""
    if chosen is None:
        return []
    scores = [
        f"- {each['score']:.2f} · {_inline(each['member'])}: {_inline(each['reason'])}"
        for each in chosen.get("scores", ())
    ]
    return [f"chosen: {_inline(chosen['member'])} ({_inline(chosen['by'])}: {_inline(chosen['reason'])})", *scores]


def _ask(run_id: str, ask: TreeAsk) -> list[str]:
    arguments = canonical(ask.arguments)
    shown = arguments if len(arguments) <= _ARGUMENTS else arguments[:_ARGUMENTS] + "…"
    yes = json.dumps({"call_id": ask.call_id, "digest": ask.digest})
    no = json.dumps({"call_id": ask.call_id, "reason": "…"}, ensure_ascii=False)
    command = f"loom approve {shlex.quote(run_id)} {shlex.quote(ask.call_id)}"
    call = ToolCall(id=ask.call_id, name=ask.tool, arguments=ask.arguments)
    whose = "" if ask.run_id == run_id else f" (sub-agent {_inline(ask.agent)}, {_code(ask.run_id)})"
    return [
        f"### Approve? {_inline(describe(call))}{whose}",
        *([f"Risk: {_inline(ask.risk)}"] if ask.risk else []),
        f"Why: {_inline(ask.reason)}" + (f" · denied if unanswered until {ask.expires_at}" if ask.expires_at else ""),
        # JSON escapes line breaks, so the text is on one line and nothing in it can end the code block.
        f"```json\n{shown.replace('```', '` ` `')}\n```",
        f"Send the `approve` signal with {_code(yes)}, or `deny` with {_code(no)}; or run {_code(command)}.",
    ]


def _parked(run_id: str, parked: Parked, probes_at: datetime | None) -> list[str]:
    last = f"It fails if this lasts until {parked.until.isoformat(timespec='seconds')}."
    again = f" Next try at {probes_at.isoformat(timespec='seconds')}." if probes_at else " A try is under way."
    return [
        f"Since {parked.since.isoformat(timespec='seconds')}: {_inline(parked.error.type)}: "
        + _inline(parked.error.message),
        f"{last}{again if parked.on is ParkedOn.PROVIDER else ''} {_inline(parked.way_out(run_id))}",
    ]


def _inline(text: str) -> str:
    """Escape text from models and tools so that it contains no markup, and cut it.

    A request can contain megabytes, and escaping them would take the seconds after which a workflow task fails.
    """
    text = text if len(text) <= _TEXT else text[:_TEXT] + "…"
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|~!&" else c for c in " ".join(text.split()))


def _code(text: str) -> str:
    """Return the text as a code span, with backticks replaced so that the text can't end the span."""
    return f"`{' '.join(text.split()).replace('`', chr(0x2019))}`"
