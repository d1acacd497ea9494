"""Calls of the model: what is sent, and what happens when one fails."""

from dataclasses import asdict, replace

from loom.domain.core.messages import Message, Tail, TranscriptRef, Usage, user
from loom.domain.core.requests import RunError, RunRequest, RunStatus
from loom.domain.machine.activity_requests import model_request
from loom.domain.machine.model_retry import MAX_RESENT
from loom.domain.machine.transitions import evolve, next_action, start
from loom.domain.run.actions import Backoff, CallModel, Finish
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import BackoffEnded, Event, MessageReceived, ModelFailed, PermissionsSet, RunPrepared
from loom.domain.run.state import Outcome, RunState
from tests.unit.domain.story import (
    AT,
    AWAY,
    BEGAN,
    LOST,
    READS,
    SPEC,
    UNKNOWN_TOOL,
    after,
    at,
    call,
    cut,
    fails,
    forgot,
    returned,
    says,
    told,
    wants,
)

HELLO = MessageReceived(text="use blue", by="ann", at=AT)


def ended(state: RunState) -> Outcome:
    action = next_action(state)
    assert isinstance(action, Finish)
    return action.outcome


def error_of(state: RunState) -> RunError:
    error = ended(state).error
    assert error is not None
    return error


# ---- failures of the model ------------------------------------------------------------------------------------------


def test_a_rate_limit_is_waited_for_as_long_as_the_provider_asked() -> None:
    state = told(BEGAN, fails("LLMRateLimitError", retry_after=7))
    assert next_action(state) == Backoff(until=at(7))
    state = evolve(state, BackoffEnded())
    assert (next_action(state), model_request(state).attempt) == (CallModel(), 2)
    assert ended(evolve(state, says("at last"))).output == "at last"


def test_no_attempt_is_used_up_while_the_provider_asks_all_runs_to_wait() -> None:
    state, limited = told(BEGAN), fails("LLMRateLimitError", retry_after=7)
    for _ in range(5):
        state = evolve(state, fails("LLMRateLimitError", retry_after=7, has_run=False))
        assert next_action(state) == Backoff(until=at(7))
        state = evolve(state, BackoffEnded())
    state = after(state, limited, BackoffEnded(), limited, BackoffEnded())
    assert error_of(evolve(state, limited)).type == "LLMRateLimitError"


def test_a_reply_that_broke_off_is_charged_to_the_run() -> None:
    used = Usage(input_tokens=100, output_tokens=7, model_calls=1)
    state = told(BEGAN, fails("LLMUnavailableError", used={**asdict(used), "cost_micros": 30}))
    assert (state.spending.usage, state.spending.cost_micros) == (used, 30)
    assert told(BEGAN, fails("LLMUnavailableError")).spending == told(BEGAN).spending


def test_the_third_failure_of_a_provider_fails_the_run() -> None:
    unavailable = fails("LLMUnavailableError")
    state = told(BEGAN, unavailable, BackoffEnded(), unavailable, BackoffEnded(), unavailable)
    assert error_of(state) == RunError(type="LLMUnavailableError", message="no (after 3 attempts)")


def test_a_wrong_key_fails_the_run_at_once() -> None:
    assert error_of(told(BEGAN, fails("LLMConfigurationError"))).message == "no"


TWO_MORE = replace(SPEC, model="openai:a", fallbacks=("openai:b", "anthropic:c"))
DOWN = (fails("LLMUnavailableError"), BackoffEnded()) * 2 + (fails("LLMUnavailableError"),)


def test_the_next_model_takes_over_when_one_does_not_answer() -> None:
    state = told(BEGAN, *DOWN, spec=TWO_MORE)
    assert next_action(state) == CallModel()
    assert (state.agent.model, state.agent.fallbacks) == ("openai:b", ("anthropic:c",))
    request = model_request(state)
    assert (request.attempt, request.spec) == (4, state.agent)
    assert request.notices[-1].parameters == {
        "model": "openai:b",
        "instead_of": "openai:a",
        "because": "LLMUnavailableError",
    }


def test_the_model_that_took_over_stays_and_has_all_its_tries() -> None:
    state = told(BEGAN, *DOWN, fails("LLMRateLimitError"), BackoffEnded(), says("hello"), spec=TWO_MORE)
    assert (ended(state).status, state.agent.model) == (RunStatus.COMPLETED, "openai:b")


def test_the_run_fails_once_every_fallback_is_spent() -> None:
    error = error_of(told(BEGAN, *DOWN, *DOWN, *DOWN, spec=TWO_MORE))
    assert error == RunError(type="LLMUnavailableError", message="no (after 9 attempts)", context={})


def test_no_other_model_is_asked_what_one_refused() -> None:
    for kind in ("LLMRefusedError", "LLMConfigurationError"):
        assert error_of(told(BEGAN, fails(kind), spec=TWO_MORE)).type == kind


def test_an_answer_makes_earlier_failures_forgotten() -> None:
    slow = (fails("LLMRateLimitError"), BackoffEnded(), fails("LLMRateLimitError"), BackoffEnded())
    state = told(BEGAN, *slow, wants((call("a"), READS)), returned(a="x"), BEGAN, *slow)
    assert next_action(state) == CallModel()


def test_workers_lost_in_one_model_call_do_not_fail_the_run() -> None:
    lost = ModelFailed(failure=LOST, at=AT)
    state = told(BEGAN, lost, lost, lost)
    assert (next_action(state), model_request(state).attempt) == (CallModel(), 4)


def test_an_outage_is_waited_for_and_does_not_count_as_lost_workers() -> None:
    outage: tuple[Event, ...] = (ModelFailed(failure=AWAY, at=AT), BackoffEnded())
    state = told(BEGAN, *outage * 30)
    assert next_action(evolve(state, ModelFailed(failure=AWAY, at=AT))) == Backoff(until=at(60))
    assert next_action(evolve(state, ModelFailed(failure=LOST, at=AT))) == CallModel()


def test_a_conversation_that_is_too_long_is_shortened_once() -> None:
    turns = [e for n in "abc" for e in (BEGAN, wants((call(n), READS)), returned(**{n: n * 1000}))]
    state = told(*turns, BEGAN, fails("LLMContextLengthError"))
    results = [m.text for m in state.transcript.messages if m.role == "tool"]
    assert results == ["a" * 200 + "\n[800 characters dropped to fit the model's window]", "b" * 1000, "c" * 1000]
    assert next_action(state) == CallModel()
    assert model_request(state).tail == Tail(items=state.transcript.messages)
    assert error_of(evolve(state, fails("LLMContextLengthError"))).type == "LLMContextLengthError"


# ---- naming the conversation ----------------------------------------------------------------------------------------


def test_a_model_call_sends_only_what_no_worker_knows_yet() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("b"), UNKNOWN_TOOL)), HELLO, returned(a="one"), BEGAN)
    request = model_request(state)
    assert request.spec is None
    assert request.tail.base == TranscriptRef(count=2, digest=state.conversation.known.digest)
    by_reference, ruled_out, message = request.tail.items
    assert not isinstance(by_reference, Message)
    assert (by_reference.call_id, ruled_out, message) == (
        "a",
        Message(role="tool", content=UNKNOWN_TOOL.error, tool_call_id="b", name="bash", is_error=True),
        user("use blue", by="ann"),
    )


def test_a_worker_that_forgot_gets_everything_inline_results_too() -> None:
    state = told(BEGAN, wants((call("a"), READS)), returned(a="one"), BEGAN, forgot())
    request = model_request(state)
    assert (request.tail, request.spec) == (Tail(items=state.transcript.messages), SPEC)
    assert (next_action(state), request.attempt) == (CallModel(), 2)


def test_workers_that_forget_what_they_were_just_sent_do_not_keep_the_run_for_ever() -> None:
    state = told(BEGAN, *[forgot()] * MAX_RESENT)
    assert next_action(state) == CallModel()
    assert error_of(evolve(state, forgot())).type == "LoomError"


def test_rules_that_change_while_the_model_thinks_send_the_new_spec_with_the_next_call() -> None:
    rules = PermissionsSet(rules={"bash": "deny"}, at=AT)
    state = told(BEGAN, rules, cut("a"), BEGAN)
    assert model_request(state).spec == replace(SPEC, permissions={"bash": "deny"})


def test_rules_that_change_before_the_run_is_prepared_hold() -> None:
    state = evolve(start("run-1", RunRequest(task="x"), AT), PermissionsSet(rules={"bash": "deny"}, at=AT))
    state = after(state, RunPrepared(prepared=Prepared(spec=SPEC)), BEGAN)
    assert model_request(state).spec == replace(SPEC, permissions={"bash": "deny"})


def test_a_spec_that_another_release_named_otherwise_gets_its_name_of_today() -> None:
    begun = told(BEGAN)
    carried_on = replace(begun, conversation=replace(begun.conversation, spec_digest="of-0.2.0"))

    assert model_request(evolve(carried_on, forgot())).spec_digest == SPEC.digest
