"""Decide what people are told about a run (`core.notifications`).

Each run tells of what it waits for itself; its sub-agents do the same. Only a root tells of its end, because the end of
a sub-agent concerns its parent and not people.
"""

import shlex
from collections.abc import Iterator
from datetime import datetime

from loom.domain.core.frozen import replace
from loom.domain.core.notifications import Notification, NotifyEvent
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tool_calls import OpenCall, describe
from loom.domain.run.pending_approvals import own_ask
from loom.domain.run.state import RunState, question_of


def unannounced(state: RunState, at: datetime) -> tuple[Notification, ...]:
    """Return what waits for people and hasn't been announced, if the run's worker tells people about it."""
    plan = state.environment.notify
    if plan is None or state.outcome is not None:
        return ()
    waiting = (each for each in _waiting(state, at) if each.event in plan.events)
    return tuple(each for each in waiting if each.key not in state.announced)


def announced(state: RunState, notification: Notification, at: datetime) -> RunState:
    """Return the run after this was announced. What no longer waits is forgotten, so that the state doesn't grow."""
    waiting = {each.key for each in _waiting(state, at)}
    known = dict.fromkeys((*state.announced, notification.key))
    return replace(state, announced=tuple(key for key in known if key in waiting))


def end_of(state: RunState, result: RunResult, at: datetime) -> Notification | None:
    """Return the notification of a root's end, or None if people aren't told of it."""
    plan = state.environment.notify
    has_failed = result.status is RunStatus.FAILED
    event = NotifyEvent.FAILED if has_failed else NotifyEvent.ENDED
    if plan is None or event not in plan.events or state.tree.lineage is not None:
        return None
    name = shlex.quote(state.run_id)
    return replace(
        _about(state, event, result.end_key, at),
        status=result.status,
        summary=result.output if result.error is None else result.error.message,
        commands=(f"loom show {name}", f"loom retry {name}") if has_failed else (f"loom result {name}",),
    )


def _waiting(state: RunState, at: datetime) -> Iterator[Notification]:
    for call in state.asks:
        yield _ask(state, call, at)
    if state.question is not None:
        yield _question(state, state.question, at)
    if state.parked is not None:
        since, error = state.parked.since, state.parked.error
        yield replace(
            _about(state, NotifyEvent.PARKED, f"parked-{since.isoformat()}", since),
            summary=f"waits for its {state.parked.on}: {error.message}",
            commands=(f"loom retry {shlex.quote(state.run_id)}",),
        )


def _ask(state: RunState, call: OpenCall, at: datetime) -> Notification:
    ask = own_ask(state, call)
    key = f"t{state.turn}-ask-{ask.call_id}-{ask.digest}"
    of_call = f"{shlex.quote(state.run_id)} {shlex.quote(ask.call_id)}"
    return replace(
        _about(state, NotifyEvent.ASK, key, call.asked_at or at),
        summary=ask.question or f"{describe(call.call, width=300)}\n{ask.reason}",
        commands=(f"loom approve {of_call}", f"loom deny {of_call} --reason TEXT"),
        call_id=ask.call_id,
        tool=ask.tool,
        risk=ask.risk,
        digest=ask.digest,
    )


def _question(state: RunState, call: OpenCall, at: datetime) -> Notification:
    return replace(
        _about(state, NotifyEvent.QUESTION, f"t{state.turn}-question-{call.call.id}", at),
        summary=question_of(call),
        commands=(f'loom send {shlex.quote(state.run_id)} "your answer"',),
        call_id=call.call.id,
    )


def _about(state: RunState, event: NotifyEvent, key: str, since: datetime) -> Notification:
    lineage = state.tree.lineage
    root = lineage.root_run_id if lineage else state.run_id
    return Notification(
        event=event,
        key=key,
        run_id=state.run_id,
        root_run_id=root,
        session_id=state.request.session_id or root,
        agent=state.request.agent,
        tenant=state.request.tenant,
        since=since,
        summary="",
        commands=(),
    )
