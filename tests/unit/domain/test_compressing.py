"""Compressing from a run's side: when a model call is put off, and what follows when that fails."""

from dataclasses import replace

from loom.domain.context.compression import staying
from loom.domain.core.messages import Message, TranscriptRef, Usage
from loom.domain.machine.activity_requests import compress_request, model_request, summary_of_compression
from loom.domain.machine.compression_step import MAX_FRUITLESS
from loom.domain.machine.transitions import evolve, next_action
from loom.domain.run.actions import Backoff, CallModel, CompressContext, Finish
from loom.domain.run.activity_payloads import Compressed, ModelReply
from loom.domain.run.conversation import TooLong, Trigger
from loom.domain.run.events import AbortRequested, BackoffEnded, CompressionFailed, ContextCompressed, ModelReplied
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import RunState, waiting_on
from loom.domain.run.status import status_view
from tests.unit.domain.story import (
    AT,
    AWAY,
    BEGAN,
    LOST,
    READS,
    SPEC,
    after,
    at,
    call,
    fails,
    notices,
    returned,
    says,
    told,
    wants,
)


def too_long(trigger: Trigger = "window", tokens: int = 184_000, limit: int = 0) -> ModelReplied:
    """The model call is put off."""
    reply = ModelReply(too_long=TooLong(trigger=trigger, tokens=tokens, limit=limit), collapsed=2)
    return ModelReplied(reply=reply, at=AT)


def compressed(state: RunState, tokens: int = 60_000) -> ContextCompressed:
    """The conversation becomes shorter."""
    summary = Message(role="system", content="so far", metadata={"compressed": True})
    kept = staying(state.transcript.messages, room=100).kept
    usage = Usage(input_tokens=30, output_tokens=3, model_calls=1)
    return ContextCompressed(compressed=Compressed(summary=summary, kept=kept, tokens=tokens, usage=usage), at=AT)


def full(*events: ModelReplied) -> RunState:
    """A run whose second model call is put off."""
    return told(BEGAN, wants((call("a"), READS)), returned(a="x"), BEGAN, *(events or (too_long(),)))


def test_a_call_that_is_too_long_waits_for_a_compression_and_then_goes_on() -> None:
    state = full()
    assert (next_action(state), waiting_on(state)) == (CompressContext(), "compression")
    assert summary_of_compression(state) == "t2 · compress 184k → at most 138k tokens"
    state = evolve(state, compressed(state))
    assert next_action(state) == CallModel()
    assert [m.role for m in state.transcript.messages] == ["system", "user", "assistant", "tool"]
    assert status_view(state)["context"] == {"tokens": 60_000, "window": 200_000, "compressions": 1}
    assert (state.spending.usage.model_calls, state.spending.usage.total_tokens) == (2, 15 + 33)


def test_neither_the_compression_nor_the_call_after_it_sends_the_conversation_again() -> None:
    state = full()
    request = compress_request(state)
    assert (request.tail.base, request.tail.items) == (state.transcript.ref, ())
    state = evolve(state, compressed(state))
    assert model_request(state).tail.items == ()
    assert model_request(state).tail.base == state.transcript.ref


def test_a_worker_that_does_not_know_the_conversation_gets_it_whole() -> None:
    state = evolve(full(), ContextCompressed(compressed=Compressed(), at=AT))
    request = compress_request(state)
    assert (request.tail.base, request.tail.items, request.attempt) == (TranscriptRef(), state.transcript.messages, 2)


def test_a_limit_that_the_provider_names_is_the_window_from_then_on() -> None:
    state = full(too_long("provider", 9000, 8192))
    assert model_request(state).measures.size == 8192
    assert model_request(state).refused
    assert model_request(evolve(state, compressed(state))).attempt == 2


def test_a_provider_that_names_no_limit_is_believed_to_take_a_little_less() -> None:
    assert model_request(full(too_long("provider", 10_000))).measures.size == 9000
    assert model_request(full(too_long("provider", 10_000, 5))).measures.size == 9000


def test_a_call_that_stays_too_long_after_a_compression_fails_the_run() -> None:
    state = full(too_long("provider", 9000, 8192))
    state = after(state, compressed(state), fails("LLMContextLengthError"))
    action = next_action(state)
    assert isinstance(action, Finish)
    assert action.outcome.error is not None
    assert action.outcome.error.type == "LLMContextLengthError"


def test_an_answer_makes_the_refusal_forgotten() -> None:
    state = full(too_long("provider", 9000, 8192))
    state = after(state, compressed(state), wants((call("b"), READS)), returned(b="x"), BEGAN)
    assert (model_request(state).refused, model_request(state).attempt) == (False, 1)


def test_three_compressions_that_gain_nothing_are_enough() -> None:
    state = full()
    for _ in range(MAX_FRUITLESS):
        assert model_request(state).compresses
        state = after(state, compressed(state, tokens=180_000), too_long())
    assert not model_request(state).compresses


def test_a_compression_that_gains_something_starts_the_count_anew() -> None:
    state = full()
    state = after(state, compressed(state, tokens=180_000), too_long(), compressed(state, tokens=50_000))
    assert state.window.fruitless == 0


def test_a_model_that_fails_at_compressing_is_tried_again_and_then_done_without() -> None:
    rate_limit = Failure(kind="provider", type="LLMRateLimitError", message="slow", context={"retry_after": 7})
    failed = CompressionFailed(failure=rate_limit, at=AT)
    state = evolve(full(), failed)
    assert next_action(state) == Backoff(until=at(7))
    state = after(state, BackoffEnded(), failed, BackoffEnded(), failed)
    assert (next_action(state), compress_request(state).plain, compress_request(state).attempt) == (
        CompressContext(),
        True,
        4,
    )


def test_workers_lost_while_compressing_do_not_count() -> None:
    lost = CompressionFailed(failure=LOST, at=AT)
    state = after(full(), lost, lost, lost, lost)
    assert (next_action(state), compress_request(state).plain) == (CompressContext(), False)
    assert isinstance(next_action(evolve(state, CompressionFailed(failure=AWAY, at=AT))), Backoff)


def test_a_compression_that_cannot_be_had_at_all_does_not_keep_the_run() -> None:
    broken = CompressionFailed(failure=Failure(kind="provider", type="ValueError", message="no", context={}), at=AT)
    state = after(full(), broken, broken)
    assert (next_action(state), model_request(state).compresses) == (CallModel(), False)
    assert notices(state)[-1] == ("node.compression", {"success": False, "error": "ValueError: no"})


def test_an_abort_ends_a_compression() -> None:
    state = evolve(full(), AbortRequested(reason="enough", at=AT))
    assert isinstance(next_action(state), Finish)
    assert evolve(state, compressed(state)).outcome == state.outcome


def test_at_80_per_cent_the_model_and_people_are_warned_once() -> None:
    usage = Usage(input_tokens=165_000, output_tokens=10, model_calls=1)
    answer = replace(wants((call("a"), READS)).reply, usage=usage, estimated=150_000)
    again = replace(wants((call("b"), READS)).reply, usage=usage, estimated=150_000)
    state = told(BEGAN, ModelReplied(reply=answer, at=AT), returned(a="x"), BEGAN)
    warning = "The context is 82 % full (165010 of 200000 tokens)."
    assert [said["text"][:51] for _, said in notices(state)] == [warning]
    assert warning in state.transcript.messages[-1].text
    state = after(state, ModelReplied(reply=again, at=AT), returned(b="x"), BEGAN)
    assert len(notices(state)) == 1


def test_the_provider_s_figures_correct_the_next_estimate() -> None:
    answer = says("", message=Message(role="assistant", content="", tool_calls=(call("a"),)), plans=(READS,))
    counted = replace(answer.reply, usage=Usage(input_tokens=1500), estimated=1000)
    state = told(BEGAN, ModelReplied(reply=counted, at=AT), returned(a="x"), BEGAN)
    assert model_request(state).measures.ratio == 1.25


def test_another_model_has_another_window() -> None:
    spec = replace(SPEC, fallbacks=("openai:b",))
    state = told(BEGAN, too_long("provider", 9000, 8192), spec=spec)
    state = after(state, compressed(state), fails("LLMContextLengthError"))
    assert (state.agent.model, model_request(state).measures.size, model_request(state).refused) == (
        "openai:b",
        0,
        False,
    )


def test_a_run_of_an_earlier_release_compresses_nothing_by_itself() -> None:
    state = told(BEGAN, fails("LLMContextLengthError"))
    assert next_action(state) == CallModel()
    assert SPEC.context_window == 200_000
