"""Images and files that people send to a run: stored before the model reads them, and never lost."""

from dataclasses import replace

import pytest

from loom.domain.context.model_context import limited
from loom.domain.context.summary_sections import without_model
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import Message, Part, groups_of, user, with_parts
from loom.domain.core.requests import RunRequest
from loom.domain.machine.activity_requests import store_parts_request
from loom.domain.machine.steering import refusal
from loom.domain.machine.transitions import evolve, next_action, start
from loom.domain.run.actions import BeginTurn, CallModel, StoreParts
from loom.domain.run.events import MessageReceived, PartsStored, RunPrepared
from loom.workflows.validation import read_request, read_steering
from tests.unit.domain.conversations import collapsed
from tests.unit.domain.story import AT, BEGAN, PREPARED, SPEC, says

GIVEN = Part(type="file", data="aGVsbG8=", name="a.txt")
STORED = Part(type="image", media_type="image/png", digest="ab" * 32, size=9, name="a.png")
SENT = MessageReceived(text="look", parts=(GIVEN,), at=AT)
BEGUN = evolve(evolve(start("r", RunRequest(task="do it"), AT), PREPARED), BEGAN)


def test_parts_are_stored_before_the_model_reads_their_message() -> None:
    state = evolve(BEGUN, SENT)
    assert next_action(state) == CallModel()  # the message isn't part of this call
    state = evolve(state, says("an answer"))
    assert next_action(state) == BeginTurn()
    state = evolve(state, BEGAN)
    assert next_action(state) == StoreParts()
    request = store_parts_request(state)
    assert (request.parts, request.spec) == ((GIVEN,), None)

    state = evolve(state, PartsStored(parts=(STORED,)))
    assert next_action(state) == CallModel()
    assert [m.content for m in state.transcript.messages[-2:]] == ["look", (STORED,)]
    assert state.incoming.due == ()
    assert evolve(state, PartsStored(parts=(STORED,))) is state


def test_a_path_is_read_under_the_agents_rules() -> None:
    sent = replace(SENT, parts=(Part(type="file", path="a.png"),))
    state = evolve(evolve(evolve(BEGUN, sent), says("x")), BEGAN)
    assert store_parts_request(state).spec == SPEC


def test_the_parts_of_a_task_are_part_of_its_first_message() -> None:
    state = start("r", RunRequest(task="do it", parts=(GIVEN,)), AT)
    state = evolve(state, RunPrepared(prepared=replace(PREPARED.prepared, parts=(STORED,))))
    assert state.transcript.messages == (with_parts(user("do it"), (STORED,)),)
    assert state.request.parts == (STORED,)


def test_a_crew_refuses_parts_because_it_reads_only_text() -> None:
    state = replace(BEGUN, request=replace(BEGUN.request, crew="staff"))
    assert refusal(state, SENT) == "a crew reads only text: send the message without `parts`"
    assert refusal(state, replace(SENT, parts=())) is None


def test_a_shortened_conversation_says_that_a_part_was_there() -> None:
    told = "[image: a.png, image/png, 9 bytes]"
    result = Message(role="tool", tool_call_id="1", name="look", content=(Part(type="text", text="x"), STORED))
    assert told in collapsed((result,), 1)[0].text
    (short,), _ = limited((result,), groups_of((result,)), 60)
    assert told in short.text
    task = with_parts(user("look at this"), (STORED,))
    assert told in without_model((task,), "")["background_context"]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({}, "parts.0: a part has one of `data` .base64., `path`, `url` and `digest`"),
        ({"data": "eA==", "url": "https://x.org/a"}, "a part has one of"),
        ({"url": "file:///etc/passwd"}, "parts.0.url"),
        ({"digest": "abc"}, "parts.0.digest"),
        ({"dat": "eA=="}, "unknown field 'parts.0.dat', did you mean 'parts.0.data'"),
    ],
)
def test_a_wrong_part_is_refused_by_name(part: dict[str, str], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read_request({"task": "t", "parts": [part]})
    with pytest.raises(BadRequest, match=why):
        read_steering("send_message", {"text": "t", "parts": [part]}, AT)


def test_parts_are_read_as_given() -> None:
    given = {"task": "t", "parts": [{"data": "aGVsbG8=", "name": "a.txt"}, {"path": "b.png"}]}
    assert read_request(given).parts == (GIVEN, Part(type="file", path="b.png"))
    with pytest.raises(BadRequest, match="at most 20 items"):
        read_request({"task": "t", "parts": [{"path": "a"}] * 21})
