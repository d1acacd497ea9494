"""The answer to the `status` query."""

from dataclasses import asdict

from loom.domain.agents.spec import window_size
from loom.domain.core.messages import JsonObject, usage_view
from loom.domain.core.repositories import workspace_view
from loom.domain.core.requests import ParkedOn, fork_view
from loom.domain.crews.log import last_choice
from loom.domain.run.chat import chat_view
from loom.domain.run.pending_approvals import open_asks
from loom.domain.run.state import (
    RunState,
    cost_of,
    question_of,
    status_of,
    total_tool_calls,
    total_usage,
    waiting_on,
)
from loom.domain.tree.tree import TreeAsk, child_view, plain_ask


def status_view(state: RunState) -> JsonObject:
    """Return the answer to the `status` query."""
    return {
        "run_id": state.run_id,
        "status": status_of(state),
        "agent": state.request.agent,
        "model": state.spec.model if state.spec else state.request.model,
        "turn": state.turns,
        "max_turns": state.max_turns,
        "waiting_on": waiting_on(state),
        "parked": _parked_view(state),
        "pending_approvals": [_ask_view(ask) for ask in open_asks(state)],
        "question": question_of(state.question) if state.question else None,
        "usage": usage_view(total_usage(state)),
        "cost": cost_of(state),
        "budget": _budget_view(state),
        "priority": state.priority,
        "session_id": state.request.session_id,
        "tenant": state.request.tenant,
        "context": _context_view(state),
        "tool_calls": total_tool_calls(state),
        "queued_messages": len(state.inbox),
        "todos": [{"task": todo.task, "status": todo.status} for todo in state.work.todos.items],
        "children": [child_view(child) for child in state.tree.children],
        "choice": last_choice(state.transcript.messages),
        "chat": chat_view(state.chat) if state.chat else None,
        "forked_from": fork_view(state.request.forked_from),
        "workspace": workspace_view(state.checkout, state.change),
        "error": asdict(state.outcome.error) if state.outcome and state.outcome.error and not state.is_answer else None,
    }


def _parked_view(state: RunState) -> JsonObject | None:
    parked = state.parked
    if parked is None or state.outcome is not None:
        return None
    probes_at = state.retry_at if parked.on is ParkedOn.PROVIDER else None
    return {
        "waiting_on": parked.on,
        "since": parked.since.isoformat(),
        "error": asdict(parked.error),
        "probes": parked.probes,
        "next_probe": probes_at.isoformat() if probes_at else None,
        "until": parked.until.isoformat(),
        "way_out": parked.way_out(state.run_id),
    }


def _ask_view(ask: TreeAsk) -> JsonObject:
    return {**plain_ask(ask), "arguments": dict(ask.arguments), "for_run": list(ask.for_run)}


def _context_view(state: RunState) -> JsonObject:
    size = window_size(state.window.size, state.spec) if state.spec else None
    return {
        "tokens": state.window.tokens,
        "window": size,
        "compressions": state.window.compressions,
    }


def _budget_view(state: RunState) -> JsonObject:
    budget = state.request.budget
    return {
        "tokens": {"spent": total_usage(state).total_tokens, "limit": budget.tokens},
        "cost_usd": {"spent": cost_of(state), "limit": budget.cost_usd},
        "tool_calls": {"spent": total_tool_calls(state), "limit": budget.tool_calls},
        "seconds": {"limit": budget.seconds},
        "turns": {"spent": state.turns, "limit": state.max_turns},
    }
