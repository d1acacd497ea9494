"""Any conversation, as the three protocols send it: what real servers reject is never in it."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.models import anthropic_messages, openai_messages, responses_input
from loom.activities.adapters.models.provider_state import joined
from loom.activities.adapters.models.sendable import EMPTY, encodable, paired, schema_of
from loom.activities.ports import ModelCall
from loom.domain.core.messages import Message, Part, ToolCall, user
from loom.domain.core.tool_calls import ToolSpec
from tests.unit.domain.conversations import talk

Json = dict[str, Any]

BLANK = ("", " ", "\n\t\x1c\xa0")
ODD = ("\0", "\ud83d", "\ude00\ud83d", "a.b", "a_b", "functions.x:0", "列", "x" * 500, "a", "a \n")
TEXTS = st.sampled_from(BLANK) | st.sampled_from(ODD) | st.text(st.characters(), max_size=8)
VALUES = st.recursive(
    TEXTS | st.none() | st.floats() | st.integers(),
    lambda inner: st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
PARTS = st.builds(
    Part, type=st.just("text"), text=TEXTS
) | st.just(Part(type="image", media_type="image/png", data="QQ=="))  # fmt: skip
CONTENTS = TEXTS | st.lists(PARTS, max_size=3).map(tuple)
CALLS = st.builds(ToolCall, id=TEXTS, name=TEXTS, arguments=st.dictionaries(TEXTS, VALUES, max_size=3))
MESSAGES = st.one_of(
    st.builds(Message, role=st.sampled_from(["user", "system"]), content=CONTENTS),
    st.builds(Message, role=st.just("assistant"), content=CONTENTS, tool_calls=st.lists(CALLS, max_size=3).map(tuple)),
    st.builds(
        Message,
        role=st.just("tool"),
        content=CONTENTS,
        tool_call_id=TEXTS,
        name=TEXTS | st.none(),
        is_error=st.booleans(),
    ),
)
TOOLS = st.lists(TEXTS, max_size=3, unique=True).map(
    lambda names: [ToolSpec(name=name, description="", parameters={"type": "object"}) for name in names]
)


@st.composite
def model_calls(draw: st.DrawFn) -> ModelCall:
    """A request with any messages. Many have a result somewhere for each call, but not in place."""
    messages = draw(st.lists(MESSAGES, min_size=1, max_size=6))
    if draw(st.booleans()):
        for call in [call for message in messages for call in message.tool_calls]:
            place = draw(st.integers(0, len(messages)))
            messages.insert(place, Message(role="tool", tool_call_id=call.id, content=draw(CONTENTS)))
    return ModelCall(model="m", system=draw(TEXTS), messages=tuple(messages), tools=draw(TOOLS))


def sent(value: Any) -> Any:
    """The value as a server reads it."""
    return json.loads(json.dumps(encodable(value), ensure_ascii=False, allow_nan=False).encode())


def read(text: str) -> Any:
    """The value of a JSON text that has no NaN."""
    return json.loads(text, parse_constant=lambda _: pytest.fail("not a number in JSON"))


def check_names(names: Sequence[str]) -> None:
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)


def check_text(text: Any) -> None:
    assert isinstance(text, str)
    assert text.strip()


def calls_in(call: ModelCall) -> list[ToolCall]:
    return [made for message in call.messages if message.role == "assistant" for made in message.tool_calls]


@given(model_calls())
def test_chat_completions_accept_any_conversation(call: ModelCall) -> None:
    messages: list[Json] = sent(openai_messages.wire_messages(call))
    check_names([tool["function"]["name"] for tool in sent(list(map(openai_messages.function_tool, call.tools)))])
    ids: list[str] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            check_text(message["content"])
            continue
        assert not waiting
        made = message.get("tool_calls", [])
        check_names([each["function"]["name"] for each in made])
        assert all(isinstance(read(each["function"]["arguments"]), dict) for each in made)
        waiting = [each["id"] for each in made]
        ids += waiting
        if message["content"] is not None or not made:
            for text in texts_of(message["content"]):
                check_text(text)
    assert not waiting
    assert all(re.fullmatch(r"[a-zA-Z0-9_.:-]{1,40}", each) for each in ids)
    assert len(set(ids)) == len(ids) == len(calls_in(call))


def texts_of(content: Any) -> Iterator[Any]:
    if isinstance(content, list):
        assert content
        yield from (part["text"] for part in content if part["type"] == "text")
    else:
        yield content


@given(model_calls())
def test_anthropic_s_messages_accept_any_conversation(call: ModelCall) -> None:
    messages: list[Json] = sent(anthropic_messages.wire_messages(call))
    check_names([tool["name"] for tool in sent(anthropic_messages.wire_tools(call.tools))])
    ids: list[str] = []
    waiting: list[str] = []
    assert [message["role"] for message in messages] == [("user", "assistant")[n % 2] for n in range(len(messages))]
    for message in messages:
        assert message["content"]
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        assert sorted(results) == sorted(waiting)
        assert all(block["type"] == "tool_result" for block in message["content"][: len(results)])
        for block in message["content"]:
            for text in [block["text"]] if block["type"] == "text" else texts_of(block.get("content", "-")):
                check_text(text)
        uses = [block for block in message["content"] if block["type"] == "tool_use"]
        check_names([use["name"] for use in uses])
        waiting = [use["id"] for use in uses]
        ids += waiting
    assert not waiting
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    assert len(set(ids)) == len(ids) == len(calls_in(call))
    last = messages[-1]["content"][-1]
    assert messages[-1]["role"] == "user" or last["text"] == last["text"].rstrip()
    assert all(block["text"].strip() for block in sent(anthropic_messages.wire_system(call.system)))


@given(model_calls())
def test_responses_accept_any_conversation(call: ModelCall) -> None:
    items: list[Json] = sent(responses_input.input_items(call))
    check_names([tool["name"] for tool in sent(list(map(responses_input.function_tool, call.tools)))])
    made = [item for item in items if item.get("type") == "function_call"]
    check_names([item["name"] for item in made])
    ids = [item["call_id"] for item in made]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
    assert len(set(ids)) == len(ids) == len(calls_in(call))
    results = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert Counter(ids) == Counter(results)
    for item in items:
        content: Any = item.get("content", item.get("output", "-"))
        for text in [content] if isinstance(content, str) else [p["text"] for p in content if "text" in p]:
            check_text(text)


CALL = ToolCall(id="1", name="look")
ASKED = Message(role="assistant", tool_calls=(CALL,))
SAID = Message(role="tool", tool_call_id="1", name="look", content="seen")


def test_an_ordinary_conversation_stays_as_it_is() -> None:
    messages = talk(50)
    assert paired(messages) is messages


def test_a_result_follows_its_call_whatever_was_said_in_between() -> None:
    assert paired((user("a"), ASKED, user("hurry"), SAID)) == [user("a"), ASKED, SAID, user("hurry")]


def test_a_call_without_a_result_gets_one() -> None:
    told = paired((ASKED, user("and?")))
    assert [message.role for message in told] == ["assistant", "tool", "user"]
    assert (told[1].tool_call_id, told[1].is_error) == ("1", True)


@pytest.mark.parametrize("result", [SAID, Message(role="tool", content="seen")])
def test_a_result_without_a_call_is_told_as_a_message(result: Message) -> None:
    (told,) = paired((result,))
    assert told.role == "user"
    assert "seen" in told.text


def test_a_second_result_of_a_call_is_told_as_a_message() -> None:
    assert [message.role for message in paired((ASKED, SAID, SAID))] == ["assistant", "tool", "user"]


def test_calls_with_the_same_id_keep_their_own_results() -> None:
    other = Message(role="tool", tool_call_id="1", content="other")
    first, one, second, two = paired((ASKED, SAID, ASKED, other))
    assert first.tool_calls[0].id == one.tool_call_id
    assert second.tool_calls[0].id == two.tool_call_id
    assert (one.content, two.content) == ("seen", "other")
    assert one.tool_call_id != two.tool_call_id


def test_a_result_of_pictures_alone_says_where_they_are() -> None:
    picture = Part(type="image", media_type="image/png", data="QQ==")
    shown = Message(role="tool", tool_call_id="1", content=(picture,))
    _, result, below = openai_messages.wire_messages(ModelCall(model="m", system="", messages=(ASKED, shown)))
    assert (result["content"], below["role"]) == ("(shown below)", "user")


@pytest.mark.parametrize("blank", BLANK)
def test_a_reply_without_anything_is_not_sent(blank: str) -> None:
    thought = {"reasoning": {"model": "m", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}}
    said = Message(role="assistant", content=blank, metadata=thought)
    call = ModelCall(model="m", system="", messages=(user("a"), said, user("b")))
    assert [message["role"] for message in openai_messages.wire_messages(call)] == ["user", "user"]
    assert [message["role"] for message in anthropic_messages.wire_messages(call)] == ["user"]
    assert [item["role"] for item in responses_input.input_items(call)] == ["user", "user"]


def test_empty_words_of_a_person_and_replies_without_anything() -> None:
    call = ModelCall(model="m", system=" ", messages=(user(""), Message(role="assistant", content=" "), user("go")))
    assert openai_messages.wire_messages(call) == [
        {"role": "user", "content": EMPTY},
        {"role": "user", "content": "go"},
    ]


@pytest.mark.parametrize(
    ("given_schema", "schema"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"type": "object", "properties": None}, {"type": "object", "properties": {}}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": ["object", "null"], "properties": []}, {"type": "object", "properties": {}}),
    ],
)
def test_schemas_have_a_type_and_properties(given_schema: Json, schema: Json) -> None:
    assert schema_of(ToolSpec(name="a", description="", parameters=given_schema)) == schema


def test_a_value_that_every_server_can_read_stays_the_same_object() -> None:
    value = {"a": ["b", ("c", {"é": 1.5})], "mended": [["\0"], ["d"]]}
    mended = encodable(value)
    assert mended == {**value, "mended": [["\ufffd"], ["d"]]}
    assert mended["a"] is value["a"]
    assert encodable(mended) is mended
    assert list(encodable(dict.fromkeys(("\ufffd", "\ud83d"), 1))) == ["\ufffd"]


@given(model_calls())
def test_a_conversation_is_sent_in_the_same_form_in_each_turn(call: ModelCall) -> None:
    fresh = replace(call, messages=tuple(replace(message) for message in call.messages))
    for convert in (openai_messages.wire_messages, anthropic_messages.wire_messages, responses_input.input_items):
        wire = convert(call)
        assert encodable(wire) is wire
        first = json.dumps(wire)
        convert(replace(call, messages=(*call.messages, user("later"))))
        assert json.dumps(convert(call)) == first == json.dumps(convert(fresh))


def test_another_model_s_form_of_a_reply_is_its_own() -> None:
    thought = {"reasoning": {"model": "m", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}}
    reply = Message(role="assistant", content="a", metadata=thought)
    call = ModelCall(model="m", system="", messages=(user("go"), reply))
    for model, kinds in (("m", ["thinking", "text"]), ("n", ["text"]), ("m", ["thinking", "text"])):
        blocks = anthropic_messages.wire_messages(replace(call, model=model))[1]["content"]
        assert [block["type"] for block in blocks] == kinds


@pytest.mark.parametrize(
    ("before", "piece", "whole"),
    [
        ({}, {"a": "x"}, {"a": "x"}),
        ({"a": "AB"}, {"b": "CD"}, {"a": "AB", "b": "CD"}),
        ({"a": "AB"}, {"a": "CD"}, {"a": "ABCD"}),
        ({"a": "AB"}, {"a": "AB"}, {"a": "AB"}),
        ({"a": "AB"}, {"a": "ABCD"}, {"a": "ABCD"}),
        ({"a": "ABA"}, {"a": "A"}, {"a": "ABAA"}),
        ({"a": {"b": {"c": "AB", "d": 1}}}, {"a": {"b": {"c": "CD", "d": 2}}}, {"a": {"b": {"c": "ABCD", "d": 2}}}),
        ({"a": [1]}, {"a": [2]}, {"a": [1, 2]}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": "AB"}, {"a": [1]}, {"a": [1]}),
        ({"a": "AB"}, {"a": None}, {"a": None}),
        ({"type": "start", "block_id": "1"}, {"type": "end", "block_id": "2"}, {"type": "end", "block_id": "2"}),
        ({"role": "b", "prototype": "c"}, {"role": "d", "prototype": "e"}, {"role": "d", "prototype": "ce"}),
    ],
)
def test_unknown_fields_in_pieces_are_put_together(before: Json, piece: Json, whole: Json) -> None:
    assert joined(before, piece) == whole


def test_texts_without_whole_characters_can_be_sent() -> None:
    value = {"\ud83d": ["a\0b", "\ud83d\ude00", {"deep": ("\udc00é", float("nan"), 1.5, True, None)}]}
    mark = "\N{REPLACEMENT CHARACTER}"
    assert sent(value) == {mark: [f"a{mark}b", "\U0001f600", {"deep": [f"{mark}é", None, 1.5, True, None]}]}
