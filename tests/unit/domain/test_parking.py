"""A run waits for its provider, or for the person who can restore access, instead of failing."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import Message, Usage, user
from loom.domain.core.requests import ParkedOn, RunStatus
from loom.domain.machine.activity_requests import model_request
from loom.domain.machine.parking import JITTER, PROBES, SUMMARY_PATIENCE
from loom.domain.machine.transitions import evolve, next_action
from loom.domain.run.actions import AwaitResume, Backoff, CallModel, CompressContext, Finish
from loom.domain.run.activity_payloads import Compressed, ModelReply
from loom.domain.run.conversation import TooLong
from loom.domain.run.events import (
    AbortRequested,
    BackoffEnded,
    CompressionFailed,
    ContextCompressed,
    Event,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    PauseRequested,
    ResumeRequested,
    RetryRequested,
    TimeRanOut,
)
from loom.domain.run.retry_policy import LONGEST_RETRY_AFTER, Failure
from loom.domain.run.state import RunState, waiting_on
from loom.domain.run.status import status_view
from loom.domain.tree.lineage import Lineage, TreeLimits
from tests.unit.domain.story import (
    AT,
    BEGAN,
    LOST,
    READS,
    SPEC,
    after,
    at,
    call,
    conversation,
    fails,
    notices,
    returned,
    says,
    told,
    wants,
)

DAY: Final = 86_400.0
PATIENT: Final = replace(SPEC, model="openai:a", patience=DAY)
IN_TURN_2: Final = (BEGAN, wants((call("a"), READS)), returned(a="x"), BEGAN)
AWAY: Final = "LLMUnavailableError"
NO_ACCESS: Final = "LLMConfigurationError"
GONE: Final[tuple[Event, ...]] = (fails(AWAY), BackoffEnded(), fails(AWAY), BackoffEnded(), fails(AWAY))
"""All quick attempts at a call fail."""


def working(*events: Event, spec: AgentSpec = PATIENT) -> RunState:
    """A run in its second turn, and then these events."""
    return told(*IN_TURN_2, *events, spec=spec)


def fails_at(seconds: float, kind: str = AWAY, **context: Any) -> ModelFailed:
    """A try that fails so long after the run began."""
    return replace(fails(kind, **context), at=at(seconds))


def wait_of(state: RunState, since: float = 0.0) -> float:
    """How long the run waits before its next try."""
    action = next_action(state)
    assert isinstance(action, Backoff), action
    return (action.until - at(since)).total_seconds()


def error_of(state: RunState) -> str:
    """Why the run has failed."""
    action = next_action(state)
    assert isinstance(action, Finish), action
    assert action.outcome.error is not None
    return action.outcome.error.type


@pytest.mark.parametrize("kind", [AWAY, "LLMRateLimitError", "LLMBadResponseError", "Timeout"])
def test_a_run_with_work_to_lose_waits_for_its_provider_after_the_quick_attempts(kind: str) -> None:
    state = working(*(fails(kind), BackoffEnded()) * 2, fails(kind))
    assert waiting_on(state) == "provider"
    assert 5 * (1 - JITTER) <= wait_of(state) <= 5 * (1 + JITTER)
    assert next_action(evolve(state, BackoffEnded())) == CallModel()


def test_a_run_without_any_answer_fails_at_once_as_does_one_that_has_no_patience() -> None:
    assert error_of(told(BEGAN, *GONE, spec=PATIENT)) == AWAY
    assert error_of(told(BEGAN, fails(NO_ACCESS), spec=PATIENT)) == NO_ACCESS
    assert error_of(working(*GONE, spec=replace(PATIENT, patience=0))) == AWAY


def test_an_open_circuit_breaker_is_waited_for_even_by_a_new_run_as_long_as_it_says() -> None:
    state = told(BEGAN, fails("CircuitBreakerOpenError", retry_after=17.5), spec=PATIENT)
    assert (waiting_on(state), wait_of(state)) == ("provider", 17.5)
    tried = after(state, BackoffEnded(), fails_at(20))
    assert waiting_on(tried) == "provider"


def test_a_sub_agent_waits_from_its_first_call_on_if_a_run_above_has_an_answer() -> None:
    state = told(BEGAN, spec=PATIENT)
    above = Lineage(parent_run_id="r", root_run_id="r", depth=1, limits=TreeLimits(), has_work_to_lose=True)
    below = replace(state, tree=replace(state.tree, lineage=above))
    assert waiting_on(after(below, *GONE)) == "provider"
    # The agent that delegated the work reads at once that it chose a model without access.
    assert error_of(evolve(below, fails(NO_ACCESS))) == NO_ACCESS


def test_the_fallbacks_come_first() -> None:
    state = working(*GONE, spec=replace(PATIENT, fallbacks=("openai:b",)))
    assert (next_action(state), state.agent.model) == (CallModel(), "openai:b")
    assert waiting_on(after(state, *GONE)) == "provider"


@pytest.mark.parametrize("limits", [{"model_attempts": 1}, {"model_attempts": 2, "first_retry_delay": 0.5}])
def test_the_agent_says_how_often_and_how_fast_it_tries_first(limits: dict[str, Any]) -> None:
    state = working(spec=replace(PATIENT, **limits))
    for _ in range(limits["model_attempts"] - 1):
        state = evolve(state, fails(AWAY))
        assert wait_of(state) == limits["first_retry_delay"]
        state = evolve(state, BackoffEnded())
    assert waiting_on(evolve(state, fails(AWAY))) == "provider"


def probes(state: RunState) -> Iterator[tuple[float, RunState]]:
    """Let each try of a parked run fail when it is due, and tell how long the run waited before it."""
    now = 0.0
    while not isinstance(next_action(state), Finish):
        waited = wait_of(state, now)
        now += waited
        state = after(state, BackoffEnded(), fails_at(now))
        yield waited, state


def test_tries_grow_rare_until_the_run_fails_when_its_patience_is_over() -> None:
    *waits, (last, failed) = list(probes(working(*GONE)))
    for number, (waited, state) in enumerate(waits):
        expected = PROBES.delay(number)
        assert expected * (1 - JITTER) <= waited <= expected * (1 + JITTER)
        assert (state.turn, state.retry_at is None) == (2, False)
    assert last <= PROBES.longest_delay * (1 + JITTER)
    assert sum(waited for waited, _ in waits) + last == pytest.approx(DAY)
    assert error_of(failed) == AWAY
    # The model's calls keep their numbers apart, since each is the id of an activity.
    numbers = [model_request(state).attempt for _, state in waits]
    assert numbers == list(range(5, 5 + len(numbers)))


def test_the_stream_is_told_when_a_run_is_parked_and_when_it_goes_on_but_not_of_each_try() -> None:
    state = after(working(*GONE), BackoffEnded(), fails_at(5), BackoffEnded(), replace(says("so"), at=at(60)))
    told_ = [said for said in notices(state) if "parked" in said[0]]
    (parked, why), (unparked, how) = told_
    assert (parked, why["waiting_on"], why["error"], why["message"]) == ("node.parked", "provider", AWAY, "no")
    assert why["until"] == at(DAY).isoformat()
    assert "loom retry run-1" in why["way_out"]
    assert (unparked, how) == ("node.unparked", {"waited_on": "provider", "seconds": 60.0, "probes": 1})
    assert (state.parked, next_action(state)) == (None, next_action(working(says("so"))))


def test_runs_that_are_parked_together_do_not_try_together() -> None:
    waits = {wait_of(state) for state in _parked_runs(50)}
    assert len(waits) > 40


def _parked_runs(count: int) -> Iterator[RunState]:
    for number in range(count):
        yield after(replace(working(), run_id=f"run-{number}"), *GONE)


@given(st.one_of(st.floats(), st.integers(), st.text(), st.none()))
def test_a_provider_can_make_a_run_wait_longer_but_not_longer_than_its_patience(asked: Any) -> None:
    state = working(*(fails("LLMRateLimitError"), BackoffEnded()) * 2, fails("LLMRateLimitError", retry_after=asked))
    waited = wait_of(state)
    assert 5 * (1 - JITTER) <= waited <= DAY
    if isinstance(asked, int | float) and 6 < asked < DAY:
        assert waited == pytest.approx(asked, abs=1e-3)


def test_a_delay_too_long_for_the_quick_attempts_parks_the_run_at_once() -> None:
    state = working(fails("LLMRateLimitError", retry_after=LONGEST_RETRY_AFTER + 1))
    assert (waiting_on(state), wait_of(state)) == ("provider", LONGEST_RETRY_AFTER + 1)


def test_a_wrong_key_waits_for_a_person_who_says_when_to_go_on() -> None:
    state = working(fails(NO_ACCESS))
    assert (waiting_on(state), wait_of(state)) == ("operator", DAY)
    assert next_action(evolve(state, RetryRequested(by="ann", at=at(9)))) == CallModel()


def test_a_person_can_go_on_with_another_model() -> None:
    spec = replace(PATIENT, fallbacks=("openai:b", "openai:c"))
    state = evolve(working(fails(NO_ACCESS), spec=spec), RetryRequested(model="openai:b", by="ann", at=at(9)))
    assert (next_action(state), state.agent.model, state.agent.fallbacks) == (CallModel(), "openai:b", ("openai:c",))
    assert model_request(state).spec == state.agent
    change = {"model": "openai:b", "instead_of": "openai:a", "because": "retry", "by": "ann"}
    assert notices(state)[-1] == ("node.fallback", change)
    assert evolve(state, replace(says("so"), at=at(10))).parked is None


def test_a_model_that_is_chosen_during_a_try_is_used_if_the_try_fails() -> None:
    trying = after(working(*GONE), BackoffEnded(), RetryRequested(model="openai:b", at=at(6)))
    assert (next_action(trying), trying.agent.model) == (CallModel(), "openai:a")
    assert evolve(trying, says("so")).agent.model == "openai:a"
    failed = evolve(trying, fails_at(7))
    assert (next_action(failed), failed.agent.model) == (CallModel(), "openai:b")
    assert waiting_on(evolve(failed, fails_at(8))) == "provider"


def test_a_retry_renews_the_patience_and_the_tries() -> None:
    state = after(working(*GONE), BackoffEnded(), fails_at(5), RetryRequested(at=at(10)), fails_at(11))
    assert state.parked is not None
    assert (state.parked.since, state.parked.until, state.parked.probes) == (AT, at(10 + DAY), 1)


def test_a_retry_of_a_run_that_is_not_parked_only_leaves_a_notice() -> None:
    state = working()
    refused = evolve(state, RetryRequested(at=AT))
    assert replace(refused, notices=state.notices) == state
    why = "the run is not waiting for its provider or its operator"
    assert notices(refused)[-1] == ("node.ignored", {"signal": "retry", "why": why})


def test_a_retry_also_ends_the_wait_between_two_quick_attempts() -> None:
    state = working(fails("LLMRateLimitError", retry_after=300))
    assert (wait_of(state), state.parked) == (300, None)
    assert next_action(evolve(state, RetryRequested(at=AT))) == CallModel()
    assert evolve(state, RetryRequested(model="openai:b", at=AT)).agent.model == "openai:b"


def test_an_error_that_no_waiting_helps_fails_a_parked_run() -> None:
    assert error_of(after(working(*GONE), BackoffEnded(), fails_at(5, "LLMRefusedError"))) == "LLMRefusedError"


def test_a_worker_lost_during_a_try_is_no_failed_try() -> None:
    state = after(working(*GONE), BackoffEnded(), ModelFailed(failure=LOST, at=at(5)))
    assert next_action(state) == CallModel()
    assert state.parked is not None
    assert state.parked.probes == 0


def test_the_next_try_contains_the_messages_that_arrived_during_the_wait() -> None:
    heard = after(working(*GONE), MessageReceived(text="use blue", by="ann", at=at(1)), BackoffEnded())
    assert (heard.inbox, conversation(heard)[-1]) == ((), ("user", "use blue"))
    assert model_request(heard).tail.items[-1] == user("use blue", by="ann")
    # Another message, during the try: it is read in the next turn, or in the next try if this one fails.
    later = evolve(heard, MessageReceived(text="no, green", at=at(6)))
    assert conversation(after(later, fails_at(7), BackoffEnded()))[-1] == ("user", "no, green")


def test_a_retry_during_a_try_leaves_messages_for_the_next_turn() -> None:
    trying = after(working(*GONE), BackoffEnded(), MessageReceived(text="use blue", by="ann", at=at(6)))
    retried = evolve(trying, RetryRequested(at=at(7)))
    assert (retried.inbox, retried.transcript) == (trying.inbox, trying.transcript)


def test_a_run_that_cannot_park_tries_again_while_the_breaker_is_open() -> None:
    state = working(fails("CircuitBreakerOpenError", retry_after=17.5), spec=replace(PATIENT, patience=0))
    assert (waiting_on(state) != "provider", wait_of(state)) == (True, 17.5)


def test_a_parked_run_can_be_paused_and_hears_messages() -> None:
    state = after(working(*GONE), PauseRequested(at=at(1)), MessageReceived(text="use blue", at=at(2)))
    assert (next_action(state), waiting_on(state), len(state.inbox)) == (AwaitResume(), "resume", 1)
    assert wait_of(evolve(state, ResumeRequested(at=at(3)))) == wait_of(working(*GONE))


def test_the_status_says_why_a_run_waits_and_how_it_goes_on() -> None:
    state = working(*GONE)
    view = status_view(state)["parked"]
    assert view == {
        "waiting_on": "provider",
        "since": AT.isoformat(),
        "error": {"type": AWAY, "message": "no", "context": {}},
        "probes": 0,
        "next_probe": (AT + timedelta(seconds=wait_of(state))).isoformat(),
        "until": at(DAY).isoformat(),
        "way_out": "The run tries again by itself. To try now, run `loom retry run-1`."
        " To go on with another model, run `loom retry run-1 --model MODEL`.",
    }
    assert status_view(evolve(state, BackoffEnded()))["parked"]["next_probe"] is None
    assert status_view(evolve(state, AbortRequested(at=AT)))["parked"] is None


COMPRESSING: Final = ModelReplied(reply=ModelReply(too_long=TooLong(trigger="window", tokens=1000)), at=AT)
NOT_COMPRESSED: Final = CompressionFailed(failure=Failure(kind="provider", type=AWAY, message="no", context={}), at=AT)


def test_a_compression_waits_for_the_provider_before_it_does_without_a_model() -> None:
    state = working(COMPRESSING, *(NOT_COMPRESSED, BackoffEnded()) * 2, NOT_COMPRESSED)
    assert waiting_on(state) == "provider"
    state = evolve(state, BackoffEnded())
    assert next_action(state) == CompressContext()
    summary = Message(role="system", content="so far", metadata={"compressed": True})
    done = Compressed(summary=summary, tokens=10, usage=Usage(model_calls=1))
    state = evolve(state, ContextCompressed(compressed=done, at=at(9)))
    assert (state.parked, next_action(state)) == (None, CallModel())


def test_a_compression_does_without_a_model_after_some_minutes_and_the_call_then_waits_for_long() -> None:
    state = working(COMPRESSING, *(NOT_COMPRESSED, BackoffEnded()) * 2, NOT_COMPRESSED, BackoffEnded())
    state = evolve(state, replace(NOT_COMPRESSED, at=at(SUMMARY_PATIENCE)))
    assert state.window.due is not None
    assert (next_action(state), state.window.due.plain, state.parked) == (CompressContext(), True, None)
    summary = Message(role="system", content="so far", metadata={"compressed": True})
    state = evolve(state, ContextCompressed(compressed=Compressed(summary=summary, tokens=10), at=at(SUMMARY_PATIENCE)))
    state = after(state, *GONE)
    assert state.parked is not None
    assert state.parked.until == at(DAY)


@given(
    st.lists(
        st.sampled_from([AWAY, NO_ACCESS, "LLMRateLimitError", "CircuitBreakerOpenError", "lost", "pause", "retry"]),
        max_size=30,
    ),
    st.sampled_from(["answer", "abort", "deadline", "patience"]),
)
def test_whatever_happens_to_a_parked_run_it_can_leave(happens: list[str], way: str) -> None:
    state, now = working(*GONE), 0.0
    for what in happens:
        now += 1
        match what:
            case "pause":
                state = after(state, PauseRequested(at=at(now)), ResumeRequested(at=at(now)))
            case "retry":
                state = evolve(state, RetryRequested(model="openai:b", at=at(now)))
            case "lost":
                state = after(state, BackoffEnded(), ModelFailed(failure=LOST, at=at(now)))
            case _:
                state = after(state, BackoffEnded(), fails_at(now, what))
        assert waiting_on(state) in tuple(ParkedOn)
        assert isinstance(next_action(state), Backoff | CallModel)
    match way:
        case "answer":
            assert after(state, BackoffEnded(), says("so")).parked is None
        case "abort":
            assert next_action(evolve(state, AbortRequested(at=at(now)))).outcome.status is RunStatus.ABORTED  # type: ignore[union-attr]
        case "deadline":
            timed = replace(state, tree=replace(state.tree, limits=TreeLimits()))
            timed = replace(timed, request=replace(state.request, budget=replace(state.request.budget, seconds=now)))
            assert isinstance(next_action(evolve(timed, TimeRanOut(at=at(now)))), Finish)
        case _:
            assert state.parked is not None
            late = (state.parked.until - AT).total_seconds()
            assert error_of(after(state, BackoffEnded(), fails_at(late), BackoffEnded(), fails_at(late))) == AWAY


def test_a_run_parks_if_its_provider_asks_all_runs_to_wait_for_long() -> None:
    assert working(fails("LLMRateLimitError", retry_after=7, has_run=False)).parked is None
    assert working(fails("LLMRateLimitError", retry_after=600, has_run=False)).parked is not None
