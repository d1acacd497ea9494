"""Retry a failed model call: unchanged, with a shorter conversation, or with another model.

`run.retry_policy` decides how often one model is tried. If the policy gives up and another model might succeed, the
agent's next fallback model takes over for the rest of the run. If there is no fallback, the run is parked
(`machine.parking`) or fails with the last error.
"""

from datetime import datetime, timedelta
from typing import Final

from loom.domain.context.model_context import shortened
from loom.domain.core.errors import BY_NAME
from loom.domain.core.frozen import replace
from loom.domain.core.messages import transcript_of
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tenants import TENANT
from loom.domain.machine.limits import charged_for_failure
from loom.domain.machine.parking import BREAKER_OPEN, attempted_now, has_work_to_lose, parked, parks_on, patience_of
from loom.domain.machine.reflection_step import with_draft
from loom.domain.machine.wrap_up import last_answer_due
from loom.domain.run.events import ModelFailed, RetryRequested
from loom.domain.run.retry_policy import (
    TIMED_OUT,
    Again,
    Failure,
    GiveUp,
    RetryDecision,
    RetryLimits,
    ShortenFirst,
    Tries,
    after_failure,
    count,
    retry_after,
    waits_for_all,
)
from loom.domain.run.state import Outcome, RunState, ended, note

MAX_RESENT: Final = 3
"""The maximum number of times that a model call is resent in full. A worker that still asks for the conversation after
that would never accept it.
"""


def resend(state: RunState) -> RunState:
    """Return the next state of a run after a worker has replied that it doesn't have the conversation."""
    if state.tries.resent >= MAX_RESENT:
        message = f"{MAX_RESENT} workers did not take a conversation that was sent whole; do they run this version?"
        return ended(state, Outcome(status=RunStatus.FAILED, error=RunError(type="LoomError", message=message)))
    return _whole(replace(state, tries=replace(state.tries, resent=state.tries.resent + 1)))


def _whole(state: RunState) -> RunState:
    """Return a copy of the run whose next model call is sent in full."""
    # Recompute the digest, because another release may compute it differently and would never find the spec.
    digest = state.agent.digest
    return replace(state, conversation=state.conversation.sent_whole(digest))


def model_failed(state: RunState, event: ModelFailed) -> RunState:
    """Return the next state of a run after an attempt at its model call has failed."""
    state = charged_for_failure(state, event.failure, event.at)
    tries = count(state.tries, event.failure)
    match retry_decision(state, state.tries, event.failure):
        case Again(delay=delay):
            return replace(state, tries=tries, retry_at=event.at + timedelta(seconds=delay) if delay else None)
        case ShortenFirst() if not state.window.refused:
            shorter = transcript_of(shortened(state.transcript.messages))
            state = note(state, Action.COMPRESSION, event.at, trigger=event.failure.type, how="tool results cut")
            window = replace(state.window, collapsed=0)
            conversation = replace(state.conversation, transcript=shorter)
            return _whole(replace(state, tries=tries, conversation=conversation, window=window))
        case _ if state.parked is not None and state.parked.model:
            return with_chosen_model(replace(state, tries=tries), event.at)
        case _ if state.agent.fallbacks and _may_do_better(event.failure):
            return _fallen_back(replace(state, tries=tries), event)
        case _ if TENANT in event.failure.context:
            return with_draft(state, event.at) or last_answer_due(replace(state, tries=tries), _spent(event), event.at)
        case _:
            if state.answer.wrap_up is not None:  # the run ends without a last answer in either case
                return ended(state, state.answer.wrap_up.outcome)
            if (on := parks_on(state, event.failure, event.at)) is not None:
                return parked(replace(state, tries=_continued(tries)), on, event.failure, event.at)
            failed = Outcome(status=RunStatus.FAILED, error=_error_of(event.failure, tries))
            return ended(state, state.answer.draft or failed)  # a draft also counts as an answer


def retry_decision(state: RunState, tries: Tries, failure: Failure) -> RetryDecision:
    """Decide how to proceed after a failure. A parked run makes one attempt at a time, and waits after it."""
    if waits_for_all(failure) and state.parked is None and not state.agent.fallbacks:
        delay = retry_after(failure) or 0.0
        may_park = bool(state.agent.patience) and has_work_to_lose(state)
        return GiveUp() if may_park and delay > state.agent.longest_retry_delay else Again(delay=delay)
    if state.parked is not None and failure.kind == "provider" and failure.type != "LLMContextLengthError":
        return GiveUp()
    agent = state.agent
    limits = RetryLimits(
        attempts=agent.model_attempts if agent.node is None else agent.node.most_attempts,
        first_delay=agent.first_retry_delay,
        longest_delay=agent.longest_retry_delay,
    )
    if failure.type == BREAKER_OPEN and not (agent.patience or agent.fallbacks) and tries.failed + 1 < limits.attempts:
        return Again(delay=retry_after(failure) or limits.first_delay)  # a run that can't park was never asked
    return after_failure(tries, failure, limits)


def retried(state: RunState, event: RetryRequested) -> RunState:
    """Return the next state of a waiting run that a person has told to try again now. The patience of a parked run
    starts again.

    An attempt in progress isn't interrupted. If it fails, the model that the person chose is tried next.
    """
    is_waiting, model = state.retry_at is not None, event.model or ""
    if state.parked is not None:
        until = event.at + timedelta(seconds=patience_of(state))
        later = "" if is_waiting else model
        now = replace(state.parked, probes=0, until=until, model=later, by=event.by, insists=True)
        state = replace(state, parked=now)
    if not is_waiting:
        return state
    state = attempted_now(state)
    return with_named_model(state, model, event.by, event.at) if model else state


def with_chosen_model(state: RunState, at: datetime) -> RunState:
    """Return the parked run, ready to make the same call with the model that a person chose during the last attempt."""
    if state.parked is None:
        return state
    chosen, by = state.parked.model, state.parked.by
    return with_named_model(replace(state, parked=replace(state.parked, model="")), chosen, by, at)


def with_named_model(state: RunState, model: str, by: str, at: datetime) -> RunState:
    """Return the run, ready to make its next call with the model that a person chose."""
    others = tuple(name for name in state.agent.fallbacks if name != model)
    return _with_model(state, model, others, at, because="retry", by=by)


def _may_do_better(failure: Failure) -> bool:
    """Whether another model might succeed. After a refusal or with a wrong API key, no other model is tried."""
    known = BY_NAME.get(failure.type)
    is_recoverable = failure.type in (TIMED_OUT, BREAKER_OPEN) or (known is not None and known.recoverable)
    return failure.kind == "provider" and is_recoverable


def _spent(event: ModelFailed) -> Outcome:
    """Return the outcome of a run whose tenant may not use more tokens or money today."""
    failure = event.failure
    error = RunError(type=failure.type, message=failure.message, context=failure.context)
    return Outcome(status=RunStatus.BUDGET_EXHAUSTED, error=error)


def _fallen_back(state: RunState, event: ModelFailed) -> RunState:
    model, *others = state.agent.fallbacks
    return _with_model(state, model, tuple(others), event.at, because=event.failure.type)


def _with_model(state: RunState, model: str, fallbacks: tuple[str, ...], at: datetime, **said: str) -> RunState:
    """Return the run, ready to make the same call with another model."""
    before = state.agent.model
    spec = replace(state.agent, model=model, fallbacks=fallbacks)
    # The window's measurements apply to the previous model.
    window = replace(state.window, size=0, ratio=1.0, refused=False)
    state = replace(state, spec=spec, tries=_continued(state.tries), retry_at=None, window=window)
    return _whole(note(state, Action.FALLBACK, at, model=model, instead_of=before, **said))


def _continued(tries: Tries) -> Tries:
    """Return fresh tries that continue the numbering of the attempts, because each attempt number must be unique."""
    return Tries(earlier=tries.attempt - 1)


def _error_of(failure: Failure, tries: Tries) -> RunError:
    number = tries.earlier + tries.failed + tries.lost
    attempts = f" (after {number} attempts)" if number > 1 else ""
    return RunError(type=failure.type, message=f"{failure.message}{attempts}", context=failure.context)
