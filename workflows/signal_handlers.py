"""Handlers for a run's signals and updates. A handler records an event, and the workflow's main loop acts on it.

A signal handler never raises an error. An unknown, malformed, or late signal adds a notice, but a stop request is
carried out even if its payload is only partly readable. An update's validator accepts or rejects the update. A rejected
update adds no event to history. After an accepted update, the caller immediately receives a receipt.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.machine.steering import extent, refusal
from loom.domain.run.events import Event, MessageReceived, SignalIgnored, SignatureUsed, SteeringEvent
from loom.domain.run.state import RunState, status_of
from loom.workflows.changes import LENIENT_STOPS, has_change
from loom.workflows.signed_requests import (
    has_signed_start,
    refuse_unnamed_approval,
    verified_fingerprint,
    without_outdated,
)
from loom.workflows.validation import RELATIVES, STEERING, STOPS, read_from_relative, read_steering, read_stop

UNSIGNED: Final = STOPS
"""Requests that never need a signature. Anyone who can reach the server can also terminate the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SteeredRun:
    """The run that the handlers steer."""

    current: Callable[[], RunState]
    advance: Callable[[Event], None]
    count_signal: Callable[[], None]
    """Called for each signal. Those that a run receives while it waits make its history long, too."""
    count_update: Callable[[], None]
    """Called for each accepted update. The server allows 2,000 updates per execution."""


def register_handlers(run: SteeredRun) -> None:
    """Register a handler for every signal and update of `run`."""
    for name in STEERING:
        workflow.set_signal_handler(name, _on_signal(run, name))
        workflow.set_update_handler(name, _on_update(run, name), validator=_validator(run, name))

    for name in RELATIVES:
        workflow.set_signal_handler(name, _on_tree_signal(run, name))

    def unknown(name: str, _args: Sequence[RawValue]) -> None:
        run.count_signal()
        _ignore(run, name, f"unknown signal; known: {', '.join(STEERING)}")

    # Register the dynamic handler without a decorator and after the named handlers. Signals that arrive before the
    # first workflow task are delivered as soon as a handler exists, so it would otherwise receive all of them.
    workflow.set_dynamic_signal_handler(unknown)


def _on_signal(run: SteeredRun, name: str) -> Callable[..., Awaitable[None]]:
    async def handle(payload: object = None, *_: object) -> None:
        run.count_signal()
        try:
            await _verify_signal(run, name)
            run.advance(_without_own_run(_read(run, name, payload)))
        except BadRequest as error:
            # Releases before 0.3.0 ignored such a request, and the histories of runs that continued must still replay.
            if name in STOPS and has_change(LENIENT_STOPS):
                workflow.logger.warning("signal taken as far as it can be read: %s: %s", name, error.message)
                run.advance(read_stop(name, payload, workflow.now()))
            else:
                _ignore(run, name, error.message)

    return handle


def _without_own_run(event: SteeringEvent) -> SteeringEvent:
    """Return the request of a signal. Nobody would start a run for its message, because a signal has no receipt."""
    if isinstance(event, MessageReceived) and event.when_busy == "own_run":
        return replace(event, when_busy="queue")
    return event


def _on_tree_signal(run: SteeredRun, name: str) -> Callable[..., Awaitable[None]]:
    async def handle(payload: object = None, *_: object) -> None:
        run.count_signal()
        try:
            await _verify_signal(run, name)
            run.advance(without_outdated(run.current(), name, read_from_relative(name, payload)))
        except BadRequest as error:
            _ignore(run, name, error.message)

    return handle


async def _verify_signal(run: SteeredRun, name: str) -> None:
    """Check the signature of the signal that is being handled, if the run requires one.

    Raises BadRequest if the signature isn't valid.
    """
    if name in UNSIGNED:
        return
    await _until_prepared(run, name)
    if run.current().signature_checks.key:
        run.advance(SignatureUsed(fingerprint=verified_fingerprint(run.current(), "signal", name)))


async def _until_prepared(run: SteeredRun, name: str) -> None:
    """Wait until a run whose start was signed knows whether requests to it must be signed, too.

    Other runs don't wait, because they are refused if signatures are required. `resume` doesn't wait either, because
    a paused run isn't prepared until it is resumed.
    """
    if name != "resume" and has_signed_start():
        await workflow.wait_condition(lambda: run.current().spec is not None or run.current().outcome is not None)


def _on_update(run: SteeredRun, name: str) -> Callable[..., Awaitable[JsonObject]]:
    async def handle(payload: object = None, *_: object) -> JsonObject:
        run.count_update()
        if name not in UNSIGNED:
            await _until_prepared(run, name)
        if fingerprint := _verify_update(run, name):
            run.advance(SignatureUsed(fingerprint=fingerprint))
        event = _read_update(run, name, payload)
        given = extent(run.current(), event)
        run.advance(event)
        state = run.current()
        return {"accepted": True, "run_id": state.run_id, "status": status_of(state), **given}

    return handle


def _validator(run: SteeredRun, name: str) -> Callable[..., None]:
    def validate(payload: object = None, *_: object) -> None:
        _verify_update(run, name)
        event = _read_update(run, name, payload)
        if why := refusal(run.current(), event):
            raise ApplicationError(why, type="Refused", non_retryable=True)

    return validate


def _verify_update(run: SteeredRun, name: str) -> str | None:
    """Return the fingerprint of the update's signature, or None if the run doesn't require signatures."""
    if name in UNSIGNED or not run.current().signature_checks.key:
        return None
    try:
        return verified_fingerprint(run.current(), "update", name)
    except BadRequest as error:
        raise ApplicationError(error.message, type="BadRequest", non_retryable=True) from None


def _read_update(run: SteeredRun, name: str, payload: object) -> SteeringEvent:
    try:
        return _read(run, name, payload)
    except BadRequest as error:
        raise ApplicationError(error.message, type="BadRequest", non_retryable=True) from None


def _read(run: SteeredRun, name: str, payload: object) -> SteeringEvent:
    """Return the request, as far as its signature holds for what the run does now. Raises BadRequest."""
    event = read_steering(name, payload, workflow.now())
    refuse_unnamed_approval(run.current(), event)
    return without_outdated(run.current(), name, event)


def _ignore(run: SteeredRun, signal: str, why: str) -> None:
    workflow.logger.warning("signal ignored: %s: %s", signal, why)
    run.advance(SignalIgnored(signal=signal, why=why, at=workflow.now()))
