"""Questions and model calls of MCP servers during a tool call, as transcripts of a run's events."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from loom.domain.core.messages import Usage
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import Effect, ToolResult
from loom.domain.core.tool_input import InputAnswer, InputRequest, NeededInput, wrong_answer
from loom.domain.machine.activity_requests import idempotency_key, sample_request, tool_request
from loom.domain.machine.input_step import NOT_COVERED
from loom.domain.machine.steering import refusal
from loom.domain.machine.transitions import evolve, next_action
from loom.domain.run.actions import AskPerson, RunTools, SampleModel
from loom.domain.run.activity_payloads import Sampled, ToolRequest
from loom.domain.run.events import Approved, AsksExpired, ModelSampled, PermissionsSet, SamplingFailed, ToolsReturned
from loom.domain.run.pending_approvals import open_asks
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import RunState
from loom.domain.tree.budget import Spend
from tests.unit.domain.story import AT, BEGAN, WRITES, call, no, returned, told, wants, yes

FORM = {"type": "object", "properties": {"room": {"type": "string", "enum": ["a", "b"]}}, "required": ["room"]}
ROOM = InputRequest(key="k1", kind="form", message="Which room?", schema=FORM)
PAGE = InputRequest(key="k2", kind="url", message="Sign in", url="https://example.com")
MODEL = InputRequest(key="k3", kind="sampling", message="call the model", sampling={"max_tokens": 5}, asks=False)


def needs(*requests: InputRequest, **needed: Any) -> ToolsReturned:
    """The server needs this first."""
    return returned(a=ToolResult(content="", needs=NeededInput(requests=requests, **needed)))


def asked(*requests: InputRequest, **needed: Any) -> RunState:
    """A run whose only call needs input."""
    return told(BEGAN, wants((call("a"), WRITES)), needs(*requests, **needed))


def request_of(state: RunState) -> ToolRequest:
    """The request of the next attempt."""
    return tool_request(state, state.calls.open[0], "x", with_notices=False)


def test_a_question_waits_for_a_person_and_the_answer_goes_with_the_next_attempt() -> None:
    state = asked(ROOM, state="s")
    ask = open_asks(state)[0]
    assert isinstance(next_action(state), AskPerson)
    assert (ask.question, ask.schema, ask.for_run) == ("Which room?", FORM, ())
    assert state.notices.pending[-1].action is Action.APPROVAL_REQUESTED
    before = request_of(state)

    state = evolve(state, yes("a", digest=ask.digest, arguments={"room": "a"}))
    assert isinstance(next_action(state), RunTools)
    request = request_of(state)
    answer = InputAnswer(key="k1", kind="form", action="accept", content={"room": "a"})
    assert (request.round, request.answers, request.server_state) == (1, (answer,), "s")
    assert request.arguments == before.arguments
    assert idempotency_key(request) == f"{idempotency_key(replace(request, round=0))}/r1"

    state = evolve(state, returned(a="booked"))
    assert state.transcript.messages[-1].text == "booked"
    assert state.spending.tool_calls == 1


def test_an_answer_that_does_not_fit_the_form_is_refused_with_the_reason() -> None:
    state = asked(ROOM)
    assert refusal(state, Approved(at=AT)) == ("the form needs room: give them as `arguments`; its fields: room")
    assert "choose from: a, b" in str(refusal(state, Approved(arguments={"room": "c"}, at=AT)))
    assert "no field 'x'" in str(refusal(state, Approved(arguments={"x": 1}, at=AT)))


def test_the_digest_of_an_earlier_question_does_not_answer_the_next_one() -> None:
    state = asked(ROOM, PAGE)
    first = open_asks(state)[0]
    state = evolve(state, yes("a", digest=first.digest, arguments={"room": "a"}))
    second = open_asks(state)[0]
    assert (second.question, second.url) == ("Sign in", "https://example.com")
    assert "is not that of call" in str(refusal(state, Approved(call_id="a", digest=first.digest, at=AT)))
    state = evolve(state, yes("a", digest=second.digest))
    assert [each.action for each in request_of(state).answers] == ["accept", "accept"]


def test_a_denial_declines_and_silence_cancels_and_the_call_goes_on() -> None:
    declined = request_of(evolve(asked(ROOM), no("a")))
    assert [(each.action, each.content) for each in declined.answers] == [("decline", {})]
    late = evolve(asked(ROOM), AsksExpired(at=AT + timedelta(days=400)))
    assert [each.action for each in request_of(late).answers] == ["cancel"]
    assert isinstance(next_action(late), RunTools)


def test_other_rules_do_not_take_back_a_call_that_has_begun() -> None:
    state = evolve(asked(ROOM), PermissionsSet(rules={"default": "deny"}, at=AT))
    assert open_asks(state)[0].question == "Which room?"


def test_a_model_call_that_a_rule_allows_is_made_and_charged() -> None:
    state = asked(MODEL)
    assert next_action(state) == SampleModel(call_id="a")
    assert sample_request(state, "a").call == {"max_tokens": 5}
    usage = Usage(input_tokens=10, output_tokens=2, model_calls=1)
    before = state.spending.usage
    sampled = Sampled(text="hi", usage=usage, cost_micros=7)
    state = evolve(state, ModelSampled(call_id="a", sampled=sampled, at=AT))
    assert state.spending.usage == before + usage
    answer = request_of(state).answers[0]
    assert (answer.action, answer.content["text"], answer.content["stop"]) == ("accept", "hi", "end")


def test_a_model_call_that_needs_a_person_is_made_after_the_approval() -> None:
    state = asked(replace(MODEL, asks=True))
    assert isinstance(next_action(state), AskPerson)
    assert next_action(evolve(state, yes("a"))) == SampleModel(call_id="a")
    refused = request_of(evolve(state, no("a")))
    assert [(each.kind, each.action) for each in refused.answers] == [("sampling", "decline")]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ModelSampled(call_id="a", sampled=Sampled(uncovered=Spend(tokens=9)), at=AT), NOT_COVERED),
        (
            SamplingFailed(
                call_id="a", failure=Failure(kind="provider", type="LLMError", message="down", context={}), at=AT
            ),
            "the model call failed: down",
        ),
    ],
)
def test_a_server_learns_why_the_model_gives_no_answer(event: ModelSampled | SamplingFailed, why: str) -> None:
    answer = request_of(evolve(asked(MODEL), event)).answers[0]
    assert (answer.action, answer.reason) == ("cancel", why)


def test_a_call_whose_server_runs_a_task_can_be_repeated_from_then_on() -> None:
    """So if a worker dies, the next one goes on with the task, and nobody has to ask what has happened."""
    state = told(BEGAN, wants((call("a"), WRITES)))
    assert request_of(state).effect is Effect.ONCE
    state = evolve(state, needs(task="t"))
    assert isinstance(next_action(state), RunTools)
    request = request_of(state)
    assert (request.effect, request.server_task, request.round) == (Effect.IDEMPOTENT, "t", 1)

    state = evolve(state, returned(a=Failure(message="", kind="lost", type="Timeout", context={})))
    assert isinstance(next_action(state), RunTools)
    again = request_of(state)
    assert (again.effect, again.server_task, again.begun) == (Effect.IDEMPOTENT, "t", True)
    assert idempotency_key(again) == idempotency_key(request)


def test_if_the_worker_that_keeps_a_call_is_lost_any_worker_makes_the_next_attempt() -> None:
    state = evolve(asked(ROOM, queue="own"), yes("a", arguments={"room": "a"}))
    waiting = state.calls.open[0].exchange
    assert waiting is not None
    assert waiting.needed.queue == "own"
    gone = Failure(kind="infrastructure", type="NoWorker", message="", context={"has_run": False})
    state = evolve(state, ToolsReturned(outcomes={"a": gone}, at=AT))
    moved = state.calls.open[0].exchange
    assert moved is not None
    assert moved.needed.queue == ""
    assert [each.content for each in request_of(state).answers] == [{"room": "a"}]


def test_a_server_that_asks_without_end_is_stopped() -> None:
    state = asked(MODEL)
    for _ in range(19):
        state = evolve(state, ModelSampled(call_id="a", sampled=Sampled(text="hi"), at=AT))
        state = evolve(state, needs(MODEL))
    state = evolve(state, ModelSampled(call_id="a", sampled=Sampled(text="hi"), at=AT))
    assert len(request_of(state).earlier_answers) == 19
    state = evolve(state, needs(MODEL))
    assert "asked for input 20 times" in state.transcript.messages[-1].text


@pytest.mark.parametrize(
    ("form", "value", "why"),
    [
        ({"type": "integer"}, True, "must be of the type integer"),
        ({"type": "number"}, 1, None),
        ({"type": "boolean"}, "yes", "must be of the type boolean"),
        ({"type": "array", "items": {"enum": ["x"]}}, ["x"], None),
        ({"type": "array", "items": {"enum": ["x"]}}, ["y"], "can't be 'y'"),
        ({"type": "string", "oneOf": [{"const": "x", "title": "X"}]}, "z", "choose from: x"),
        ("broken", "anything", None),
    ],
)
def test_a_field_takes_what_its_schema_says(form: Any, value: Any, why: str | None) -> None:
    found = wrong_answer({"properties": {"f": form}}, {"f": value})
    assert found is None if why is None else why in str(found)
