"""Park a run instead of failing it if its model call can't succeed at the moment.

    ModelFailed, CompressionFailed ──▶ parked ──BackoffEnded, RetryRequested──▶ one try ──▶ unparked, or parked again

A run that is parked on its `provider` tries again by itself: after 5 s, and then after delays that double up to 5 min.
A run that is parked on its `operator` waits for a person's `retry`, because only a person can correct a key, a model's
name or a quota. When the agent's patience is exhausted, the run makes one last attempt. If that fails, the run fails
with its error.

Only a run that would lose work is parked. A run whose first model call fails reports the error at once, so that the
person or the agent that started it can correct it. There are two exceptions. A sub-agent waits for its provider from
its first call on, because its parent would lose the work that it delegated. Every run waits for a circuit breaker that
is open, because the calls of other runs have opened it. A run that has a draft of its answer, or that has reached a
limit, ends with what it has.
"""

from datetime import datetime, timedelta
from typing import Final

from loom.domain.core.errors import (
    BadRequest,
    CircuitBreakerOpenError,
    LLMBadResponseError,
    LLMConfigurationError,
    LLMRateLimitError,
    LLMUnavailableError,
)
from loom.domain.core.frozen import replace
from loom.domain.core.messages import is_from_person, short_digest
from loom.domain.core.requests import ParkedOn, RunError
from loom.domain.core.tasks import Action
from loom.domain.run.retry_policy import TIMED_OUT, Failure, RetryLimits, retry_after
from loom.domain.run.state import Parked, RunState, note
from loom.domain.tools.loop_detection import Repetition

PROBES: Final = RetryLimits(first_delay=5.0, longest_delay=300.0)
"""The delays between the attempts of a run that is parked on its provider, before the jitter."""
JITTER: Final = 0.2
"""The largest change to a delay, as a share of it. Runs that were parked together don't try together."""

SUMMARY_PATIENCE: Final = 600.0
"""The maximum number of seconds that a compression waits. A model that can call tools may still be unable to summarize.
"""

BREAKER_OPEN: Final = CircuitBreakerOpenError.__name__
_BY_PROVIDER: Final = (
    TIMED_OUT,
    BREAKER_OPEN,
    LLMBadResponseError.__name__,
    LLMRateLimitError.__name__,
    LLMUnavailableError.__name__,
)
_BY_OPERATOR: Final = (LLMConfigurationError.__name__, BadRequest.__name__)
"""A model call fails with `BadRequest` if the worker doesn't know the provider."""


def parks_on(state: RunState, failure: Failure, at: datetime) -> ParkedOn | None:
    """Return what a run must wait for after its model call has failed for good, or None if the run must not wait."""
    is_over = state.parked is not None and at >= state.parked.until
    has_answer = state.answer.wrap_up is not None or state.answer.draft is not None
    if failure.kind != "provider" or is_over or has_answer or not state.agent.patience:
        return None
    has_begun = state.parked is not None or state.turn > 1
    if failure.type in _BY_OPERATOR:
        return ParkedOn.OPERATOR if has_begun else None
    may_wait = has_begun or has_work_to_lose(state) or failure.type == BREAKER_OPEN
    return ParkedOn.PROVIDER if failure.type in _BY_PROVIDER and may_wait else None


def has_work_to_lose(state: RunState) -> bool:
    """Whether a model has answered in this run, or in the run that delegated this run's work."""
    return state.turn > 1 or (state.tree.lineage is not None and state.tree.lineage.has_work_to_lose)


def parked(state: RunState, on: ParkedOn, failure: Failure, at: datetime) -> RunState:
    """Return the run, parked until its next attempt. Its stream reports this once, and not again after each attempt
    that fails.
    """
    error = RunError(type=failure.type, message=failure.message, context=failure.context)
    before = state.parked
    if before is not None and before.on is on:
        now = replace(before, error=error, probes=before.probes + 1, model="", insists=False)
    else:
        now = Parked(on=on, error=error, since=at, until=at + timedelta(seconds=patience_of(state)))
    wait = patience_of(state) if on is ParkedOn.OPERATOR else _delay(state, now, failure)
    # A provider can ask for any delay, even an infinite one.
    due = at + timedelta(seconds=min(wait, patience_of(state)))
    state = replace(state, parked=now, retry_at=min(due, now.until))
    if before is not None and before.on is on:
        return state
    said = {"waiting_on": on, "error": error.type, "message": error.message, "until": now.until.isoformat()}
    probes_at = state.retry_at.isoformat() if state.retry_at and on is ParkedOn.PROVIDER else None
    return note(state, Action.PARKED, at, **said, next_probe=probes_at, way_out=now.way_out(state.run_id))


def patience_of(state: RunState) -> float:
    """Return the number of seconds that the run waits for its pending model call or compression."""
    return state.agent.patience if state.window.due is None else min(state.agent.patience, SUMMARY_PATIENCE)


def _delay(state: RunState, now: Parked, failure: Failure) -> float:
    asked = retry_after(failure)
    if asked is not None and failure.type == BREAKER_OPEN:
        return asked  # the breaker knows when the provider is due, and spreads the runs itself
    digest = short_digest(f"{state.run_id} {state.turn} {now.since.isoformat()} {now.probes}")
    lot = int(digest, 16) / float(16 ** len(digest))
    return max(PROBES.delay(now.probes) * (1 + JITTER * (2 * lot - 1)), asked or 0.0)


def attempted_now(state: RunState) -> RunState:
    """Return the run, ready for its next attempt. A parked run's model call contains the messages that have arrived."""
    state = replace(state, retry_at=None)
    if state.parked is None or not state.inbox or state.window.due is not None:
        return state
    if any(is_from_person(message) for message in state.inbox):
        state = replace(state, work=replace(state.work, repetition=Repetition()))
    state = replace(state, conversation=state.conversation.extended(state.inbox), inbox=())
    return replace(state, incoming=state.incoming.read)


def unparked(state: RunState, at: datetime) -> RunState:
    """Return the run after its model has answered, or after the run has found another way to go on."""
    if state.parked is None:
        return state
    before = state.parked
    waited = round((at - before.since).total_seconds(), 1)
    state = replace(state, parked=None)
    return note(state, Action.UNPARKED, at, waited_on=before.on, seconds=waited, probes=before.probes, by=before.by)
