"""Messages lose nothing when they are written down and read back, and change only by becoming new ones."""

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.messages import Message, Part, ToolCall, Usage, last_text, reminder, user
from loom.workflows.payload_converter import data_converter

CONVERTER: Final = data_converter().payload_converter

TEXT: Final = st.text(max_size=10)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECTS: Final[st.SearchStrategy[Mapping[str, Any]]] = st.dictionaries(TEXT, JSON, max_size=3)
PARTS: Final = st.builds(
    Part,
    type=st.sampled_from(["text", "image", "audio", "file"]),
    text=TEXT,
    media_type=TEXT,
    data=TEXT,
    url=TEXT,
    name=TEXT,
)
MESSAGES: Final = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXT | st.lists(PARTS, max_size=3).map(tuple),
    tool_calls=st.lists(
        st.builds(ToolCall, id=TEXT, name=TEXT, arguments=OBJECTS, malformed=st.none() | TEXT), max_size=2
    ).map(tuple),
    tool_call_id=st.none() | TEXT,
    name=st.none() | TEXT,
    is_error=st.booleans(),
    metadata=OBJECTS,
)


def there_and_back(value: object, kind: Any) -> object:
    return CONVERTER.from_payloads(CONVERTER.to_payloads([value]), [kind])[0]


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert there_and_back(message, Message) == message


@given(st.lists(MESSAGES, max_size=3).map(tuple))
def test_a_history_comes_back_as_it_was(history: tuple[Message, ...]) -> None:
    assert there_and_back(history, tuple[Message, ...]) == history


def test_half_a_character_is_replaced_rather_than_refused() -> None:
    assert there_and_back(user("a\ud83d"), Message) == user("a\ufffd")


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        user("hello").content = "bye"  # type: ignore[misc]


def test_text_is_the_text_of_all_parts() -> None:
    parts = (Part(type="text", text="one"), Part(type="image", text="no", url="x"), Part(type="text", text="two"))
    assert Message(role="user", content=parts).text == "one\ntwo"


def test_a_reminder_is_told_apart_from_what_people_say() -> None:
    note = reminder("Call done.")
    assert (note.text, note.metadata) == ("<system-reminder>Call done.</system-reminder>", {"kind": "reminder"})
    assert user("hello", by="ann").metadata == {"by": "ann"}


def test_the_last_text_is_the_assistants() -> None:
    silent = Message(role="assistant", tool_calls=(ToolCall(id="a", name="bash"),))
    assert last_text([Message(role="assistant", content="so"), silent, user("thanks")]) == "so"
    assert last_text([user("thanks")]) == ""


def test_usage_adds_up_field_by_field() -> None:
    one = Usage(input_tokens=1, output_tokens=2, cached_tokens=3, model_calls=4)
    assert one + one == Usage(input_tokens=2, output_tokens=4, cached_tokens=6, model_calls=8)
    assert one.total_tokens == 3
