"""What a run's events count: the measurements that follow from one event, given the states before and after it.

Each count comes from the change of the recorded state that also makes up the run's result. The sums of the counters and
of the results are therefore equal.
"""

from collections.abc import Iterator
from datetime import datetime

from loom.domain.core import metrics
from loom.domain.core.errors import BY_NAME
from loom.domain.core.messages import Usage
from loom.domain.core.metrics import Measurement, model_labels, tool_label
from loom.domain.core.requests import RunResult
from loom.domain.core.tool_calls import OpenCall, PreparedCall, ToolResult, Verdict
from loom.domain.core.tool_names import DONE
from loom.domain.run.events import (
    Approved,
    AsksExpired,
    CallsPrepared,
    CompressionFailed,
    ContextCompressed,
    Denied,
    EvaluationFailed,
    Event,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    RunReopened,
    SamplingFailed,
    ToolsReturned,
    TurnBegan,
)
from loom.domain.run.retry_policy import TIMED_OUT, Failure
from loom.domain.run.state import RunState
from loom.domain.tree.events import ChildEnded, ChildrenBegan

_OTHER_ERROR = "other"


def measured(before: RunState, event: Event, after: RunState, at: datetime) -> Iterator[Measurement]:  # noqa: C901 - one case an event
    """Yield what this event counts. `at` is the time of the event."""
    match event:
        case TurnBegan():
            yield from _turn_began(before, after, at)
        case ModelReplied(reply=reply):
            if reply.message is not None:
                yield Measurement(metrics.CONTEXT_TOKENS, (after.request.agent,), after.window.tokens)
                yield from _planned(before, event, after)
        case ModelFailed(failure=failure) | CompressionFailed(failure=failure):
            kind = "model" if isinstance(event, ModelFailed) else "compression"
            yield from _failed(before, after, failure, kind)
        case EvaluationFailed(failure=failure) | SamplingFailed(failure=failure):
            yield _called(before, _outcome_of(failure))
        case ContextCompressed(compressed=compressed):
            if before.window.due is not None and compressed.summary is not None:
                trigger, ratio = before.window.due.trigger, compressed.tokens / max(1, before.window.due.tokens)
                yield Measurement(metrics.COMPRESSIONS, (trigger, "compressed"))
                yield Measurement(metrics.COMPRESSION_RATIO, (trigger,), ratio)
        case ToolsReturned():
            yield from _returned(before, event, after)
        case RunReopened():
            yield Measurement(metrics.REOPENED, (after.request.agent,))
        case _:
            yield from _ended_without_running(before, event, after)
    yield from _spent(before, after, event)
    yield from _waits(before, event, after, at)


def measured_at_end(state: RunState, result: RunResult, at: datetime) -> Iterator[Measurement]:
    """Yield the measurements at the end of a run. `state` is the last state that an event led to."""
    labels = (state.request.agent, result.status.value)
    yield Measurement(metrics.RUNS, labels)
    yield Measurement(metrics.RUN_DURATION, labels, _seconds(state.began_at, at))
    for call in state.calls.open:
        if call.result is None:
            yield Measurement(metrics.TOOL_CALLS, (_label(state, call.call.name), "aborted"))
    yield from _decided(state.asks, frozenset(), "withdrawn", at)


def _turn_began(before: RunState, after: RunState, at: datetime) -> Iterator[Measurement]:
    agent = (after.request.agent,)
    if (begun := after.turns - before.turns) > 0:
        yield Measurement(metrics.ITERATIONS, agent, begun)
    if before.turn == 0 and after.turn == 1:
        yield Measurement(metrics.RUNS_STARTED, agent)
        yield Measurement(metrics.FIRST_TURN, agent, _seconds(after.began_at, at))


def _failed(before: RunState, after: RunState, failure: Failure, kind: str) -> Iterator[Measurement]:
    yield _called(before, _outcome_of(failure))
    if failure.kind == "lost":
        yield Measurement(metrics.RECOVERIES, (kind,))
    if after.outcome is None:
        yield Measurement(metrics.RETRIES, (kind,))
    if (due := before.window.due) is not None and after.window.due is None:
        yield Measurement(metrics.COMPRESSIONS, (due.trigger, "failed"))
    # A person may have chosen another model during the attempt: that isn't a fallback.
    next_model = before.spec.fallbacks[:1] if before.spec is not None else ()
    if before.spec is not after.spec and after.spec is not None and next_model == (after.spec.model,):
        yield Measurement(metrics.FALLBACKS, model_labels(after.spec.model))


def _outcome_of(failure: Failure) -> str:
    """Return the label of a failed model call. Only Loom's own names are labels, because an app's provider can raise
    any error.
    """
    if failure.kind != "provider":
        return failure.kind
    return failure.type if failure.type in BY_NAME or failure.type == TIMED_OUT else _OTHER_ERROR


def _called(state: RunState, outcome: str, count: int = 1) -> Measurement:
    return Measurement(metrics.LLM_CALLS, (*_model(state), outcome), count)


def _spent(before: RunState, after: RunState, event: Event) -> Iterator[Measurement]:
    """Yield the tokens, the money and the answered calls that the event charged to the run."""
    if before.spending is after.spending:
        return
    used, earlier, model = after.spending.usage, before.spending.usage, _model(before)
    if used is not earlier:
        for kind, tokens in _tokens(earlier, used):
            if tokens:
                yield Measurement(metrics.TOKENS, (*model, kind), tokens)
        failed = isinstance(event, ModelFailed | CompressionFailed | EvaluationFailed | SamplingFailed)
        if not failed and (answered := used.model_calls - earlier.model_calls):
            yield _called(before, "answered", answered)
    if micros := (after.spending.cost_micros or 0) - (before.spending.cost_micros or 0):
        yield Measurement(metrics.COST, model, max(0, micros))


def _tokens(before: Usage, after: Usage) -> Iterator[tuple[str, int]]:
    yield "input", after.input_tokens - before.input_tokens
    yield "output", after.output_tokens - before.output_tokens
    yield "cached", after.cached_tokens - before.cached_tokens
    yield "cache_write", after.cache_write_tokens - before.cache_write_tokens


def _planned(before: RunState, event: ModelReplied, after: RunState) -> Iterator[Measurement]:
    """Yield the calls of an answer that have already run, and those that won't run. `done` doesn't count as a call."""
    message = event.reply.message
    still_open = {call.call.id: call for call in after.calls.open}
    for call, plan in zip(message.tool_calls if message else (), event.reply.plans, strict=False):
        now = still_open.get(call.id)
        if plan.result is not None:
            yield from _attempted(_label(before, call.name), plan.result, 1, now)
        elif plan.is_quick and now is not None and now.result is None:
            yield Measurement(metrics.RETRIES, ("tool",))
        elif call.name != DONE and (now is None or now.result is not None):
            yield Measurement(metrics.TOOL_CALLS, (_label(before, call.name), _ruled_out(plan) or "aborted"))


def _ruled_out(plan: PreparedCall) -> str:
    if plan.stopped or (not plan.error and plan.verdict is Verdict.DENY):
        return "denied"
    if plan.answer is not None:
        return "answered"
    return "refused" if plan.error else ""


def _returned(before: RunState, event: ToolsReturned, after: RunState) -> Iterator[Measurement]:
    still_open = {call.call.id: call for call in after.calls.open}
    for call in before.calls.open:
        outcome = event.outcomes.get(call.call.id)
        if outcome is None or call.result is not None:
            continue
        name = _label(before, call.call.name)
        if isinstance(outcome, Failure) and outcome.kind == "lost":
            yield Measurement(metrics.RECOVERIES, ("tool",))
        yield from _attempted(name, outcome, call.attempt, still_open.get(call.call.id))


def _attempted(name: str, outcome: ToolResult | Failure, attempt: int, now: OpenCall | None) -> Iterator[Measurement]:
    """Yield an attempt at a call that has ended. `now` is None if all calls of its turn have a result."""
    if now is None or now.result is not None:
        status = outcome.status if isinstance(outcome, ToolResult) else "error"
        yield Measurement(metrics.TOOL_CALLS, (name, status))
    elif now.attempt > attempt and not now.inline:
        yield Measurement(metrics.RETRIES, ("tool",))
    if isinstance(outcome, ToolResult) and outcome.stage_ms:
        yield Measurement(metrics.TOOL_DURATION, (name, outcome.status), sum(outcome.stage_ms) / 1000)


def _ended_without_running(before: RunState, event: Event, after: RunState) -> Iterator[Measurement]:
    """Yield the calls that got their result from something else than their tool: a decision, or a child's end."""
    if before.calls is after.calls or not before.calls.open:
        return
    still_open = {call.call.id: call for call in after.calls.open}
    for call in before.calls.open:
        now = still_open.get(call.call.id)
        if call.result is None and (now is None or now.result is not None):
            status = _status_without_running(event, now)
            yield Measurement(metrics.TOOL_CALLS, (_label(before, call.call.name), status))


def _status_without_running(event: Event, now: OpenCall | None) -> str:
    """Return the status of a call that has ended. `now` is None if all calls of its turn have."""
    match event:
        case Denied() | AsksExpired():
            return "denied"
        case MessageReceived():
            return "answered"  # a question to a person
        case CallsPrepared():
            return (_ruled_out(now.plan) if now else "") or "refused"
        case ChildEnded(result=result):
            return "success" if result is not None and result.error is None else "error"
        case ChildrenBegan():
            return "refused"
        case _:
            return "aborted"


def _waits(before: RunState, event: Event, after: RunState, at: datetime) -> Iterator[Measurement]:
    """Yield the asks that began and ended, and the run's being parked."""
    if before.calls is not after.calls:
        asked = {call.call.id for call in before.asks}
        for call in after.asks:
            if call.call.id not in asked:
                yield Measurement(metrics.ASKS, (_label(after, call.call.name),))
        decision = {Approved: "approved", Denied: "denied", AsksExpired: "expired"}.get(type(event), "withdrawn")
        yield from _decided(before.asks, frozenset(call.call.id for call in after.asks), decision, at)
    if before.parked is None and after.parked is not None:
        yield Measurement(metrics.PARKED, (after.parked.on.value,))
    if before.parked is not None and after.parked is None:
        yield Measurement(metrics.PARKED_TIME, (before.parked.on.value,), _seconds(before.parked.since, at))


def _decided(
    asks: tuple[OpenCall, ...], open_ids: frozenset[str], decision: str, at: datetime
) -> Iterator[Measurement]:
    for call in asks:
        if call.call.id not in open_ids:
            waited = _seconds(call.asked_at, at) if call.asked_at is not None else 0.0
            yield Measurement(metrics.ASK_WAIT, (decision,), waited)


def _model(state: RunState) -> tuple[str, str]:
    return model_labels(state.spec.model if state.spec is not None else "")


def _label(state: RunState, tool: str) -> str:
    known = frozenset(each.name for each in state.spec.tools) if state.spec is not None else frozenset()
    return tool_label(tool, known)


def _seconds(since: datetime, at: datetime) -> float:
    return max(0.0, (at - since).total_seconds())
