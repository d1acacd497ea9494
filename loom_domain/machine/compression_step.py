"""Compression: if the conversation is too long, the model call is postponed and the conversation is compressed first.

    CallModel ──ModelReplied(too_long)──▶ CompressContext ──ContextCompressed──▶ CallModel
                                           │        ▲
                                  CompressionFailed ┘  retried later; then without a model; then never

If the provider is unavailable, a run that can wait is parked (`machine.parking`) for some minutes before it compresses
without a model.

After three consecutive compressions that each save less than a tenth of the tokens, the run stops compressing its
conversation. The model is then called with as much of the conversation as fits.
"""

from datetime import datetime, timedelta
from typing import Final

from loom.domain.context.compression import transcript_after
from loom.domain.core.frozen import replace
from loom.domain.core.messages import Transcript
from loom.domain.core.tasks import Action
from loom.domain.machine.limits import charged, charged_for_failure
from loom.domain.machine.model_retry import resend, retry_decision, with_chosen_model
from loom.domain.machine.parking import parked, parks_on, unparked
from loom.domain.run.conversation import DueCompression, TooLong, Window
from loom.domain.run.events import CompressionFailed, ContextCompressed
from loom.domain.run.retry_policy import Again, Failure, Tries, count
from loom.domain.run.state import RunState, note

MAX_FRUITLESS: Final = 3
LEAST_GAIN: Final = 0.1
"""The fraction of the tokens that a compression must save to be worthwhile."""
LEAST_WINDOW: Final = 1000
"""The number of tokens that every model accepts. A smaller limit in a provider's error message is assumed to have been
misread.
"""
SAFE: Final = 0.9
"""The fraction of a rejected context that is assumed to fit if the provider did not report its limit."""


def put_off(state: RunState, too_long: TooLong, collapsed: int) -> RunState:
    """Return the next state of a run whose model call must wait for a compression. The call's worker has cached the
    full conversation.
    """
    before = state.window
    refused = too_long.trigger == "provider"
    told = too_long.limit if too_long.limit >= LEAST_WINDOW else int(SAFE * too_long.tokens)
    size = told if refused else before.size
    window = replace(
        before,
        due=DueCompression(trigger=too_long.trigger, tokens=too_long.tokens),
        size=size,
        collapsed=collapsed,
        refused=before.refused or refused,
        put_off=before.put_off + int(refused),
    )
    return _cached_as(replace(state, window=window), state.transcript)


def context_compressed(state: RunState, event: ContextCompressed) -> RunState:
    """Return the next state of a run whose conversation has been compressed."""
    due, done = state.window.due, event.compressed
    if due is None:
        return state
    state = replace(state, window=replace(state.window, attempts=state.window.attempts + 1))
    if done.summary is None:
        return resend(state)
    gained = done.tokens <= (1 - LEAST_GAIN) * due.tokens
    window = replace(
        state.window,
        tokens=done.tokens,
        due=None,
        collapsed=0,
        warned=False,
        compressions=state.window.compressions + 1,
        fruitless=0 if gained else state.window.fruitless + 1,
    )
    shorter = transcript_after(state.transcript.messages, done.summary, done.kept)
    paid = charged(replace(state, window=window), done.usage, done.cost_micros, event.at)
    if state.parked is not None and done.usage.model_calls:
        paid = unparked(paid, event.at)
    return _cached_as(paid, shorter)


def compression_failed(state: RunState, event: CompressionFailed) -> RunState:
    """Return the next state of a run after a compression attempt has failed.

    The run retries with the model, compresses without a model, or gives up.
    """
    due = state.window.due
    if due is None:
        return state
    state = charged_for_failure(state, event.failure, event.at)
    window = replace(state.window, attempts=state.window.attempts + 1)
    match retry_decision(state, due.tries, event.failure):
        case Again(delay=delay):
            again = replace(due, tries=count(due.tries, event.failure))
            retry_at = event.at + timedelta(seconds=delay) if delay else None
            return replace(state, window=replace(window, due=again), retry_at=retry_at)
        case _ if state.parked is not None and state.parked.model:
            return with_chosen_model(replace(state, window=replace(window, due=replace(due, tries=Tries()))), event.at)
        case _ if not due.plain and (on := parks_on(state, event.failure, event.at)) is not None:
            state = replace(state, window=replace(window, due=replace(due, tries=Tries())))
            return parked(state, on, event.failure, event.at)
        case _ if not due.plain:
            state = unparked(state, event.at)
            return replace(state, window=replace(window, due=replace(due, plain=True, tries=Tries())))
        case _:
            return _given_up(state, window, event.failure, event.at)


def _cached_as(state: RunState, transcript: Transcript) -> RunState:
    """Return the run with this conversation. The worker that has just answered has cached it."""
    conversation = state.conversation.cached_as(transcript, send_spec=state.calls.rules_changed)
    return replace(state, conversation=conversation, calls=replace(state.calls, rules_changed=False), retry_at=None)


def _given_up(state: RunState, window: Window, failure: Failure, at: datetime) -> RunState:
    state = replace(state, window=replace(window, due=None, fruitless=MAX_FRUITLESS))
    return note(state, Action.COMPRESSION, at, success=False, error=f"{failure.type}: {failure.message}")
