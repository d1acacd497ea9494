"""A conversation's name says what the model sees, in which order, and nothing else."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.context.model_context import KEEP_WHOLE, shortened
from loom.domain.core.messages import (
    Message,
    Part,
    ResultRef,
    ToolCall,
    Transcript,
    TranscriptRef,
    message_digest,
    tail_of,
    transcript_of,
    user,
)

TEXT: Final = st.text(max_size=20)
PARTS: Final = st.builds(Part, type=st.sampled_from(["text", "image"]), text=TEXT, media_type=TEXT, data=TEXT, url=TEXT)
MESSAGES: Final = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "tool", "system"]),
    content=TEXT | st.lists(PARTS, max_size=2).map(tuple),
    tool_calls=st.lists(st.builds(ToolCall, id=TEXT, name=TEXT, arguments=st.dictionaries(TEXT, TEXT)), max_size=2).map(
        tuple
    ),
    tool_call_id=st.none() | st.sampled_from(["a", "b", "c"]),
    is_error=st.booleans(),
)
CONVERSATIONS: Final = st.lists(MESSAGES, max_size=8)
SAID: Final = Message(role="assistant", content="so", tool_calls=(ToolCall(id="a", name="bash", arguments={"x": 1}),))


@given(CONVERSATIONS, st.integers(0, 8))
def test_a_transcript_has_one_name_however_it_was_put_together(messages: list[Message], split: int) -> None:
    apart = transcript_of(messages[:split]).extended(messages[split:])
    assert apart == transcript_of(messages)
    assert apart.ref == TranscriptRef(count=len(messages), digest=apart.digest)


@given(CONVERSATIONS)
def test_the_order_of_messages_counts(messages: list[Message]) -> None:
    there, back = transcript_of(messages), transcript_of(messages[::-1])
    assert (there.digest == back.digest) is (
        [message_digest(m) for m in messages] == [message_digest(m) for m in messages[::-1]]
    )


@given(CONVERSATIONS, MESSAGES)
def test_one_more_message_is_another_name(messages: list[Message], more: Message) -> None:
    assert transcript_of(messages).ref != transcript_of([*messages, more]).ref


@pytest.mark.parametrize(
    "same",
    [
        replace(SAID, metadata={"by": "ann"}),
        replace(SAID, metadata={"id": "m1", "at": "2026-01-02T03:04:05+00:00"}),
        replace(SAID, name="bob"),
    ],
)
def test_what_the_model_does_not_see_does_not_count(same: Message) -> None:
    assert message_digest(same) == message_digest(SAID)


@pytest.mark.parametrize(
    "other",
    [
        replace(SAID, role="user"),
        replace(SAID, content="no"),
        replace(SAID, content=(Part(type="text", text="so"),)),
        replace(SAID, tool_calls=()),
        replace(SAID, tool_calls=(ToolCall(id="b", name="bash", arguments={"x": 1}),)),
        replace(SAID, tool_calls=(ToolCall(id="a", name="bash", arguments={"x": True}),)),
        replace(SAID, tool_calls=(ToolCall(id="a", name="bash", malformed="{"),)),
        replace(SAID, tool_call_id="a"),
        replace(SAID, is_error=True),
    ],
)
def test_what_the_model_sees_counts(other: Message) -> None:
    assert message_digest(other) != message_digest(SAID)


def test_half_a_character_has_a_name_too() -> None:
    assert message_digest(user("\ud83d")) != message_digest(user("?"))


@given(CONVERSATIONS, st.integers(0, 8), st.frozensets(st.sampled_from("abc")))
def test_a_tail_with_its_results_looked_up_is_the_conversation(
    messages: list[Message], split: int, produced: frozenset[str]
) -> None:
    base = transcript_of(messages[:split])
    kept = {(m.tool_call_id, message_digest(m)): m for m in messages if m.role == "tool"}
    tail = tail_of(base.ref, messages, produced)
    items = [kept[(i.call_id, i.digest)] if isinstance(i, ResultRef) else i for i in tail.items]
    assert tail.base == base.ref
    assert base.extended(items).ref == transcript_of(messages).ref
    assert all(isinstance(i, ResultRef) or i.tool_call_id not in produced or i.role != "tool" for i in tail.items)


def test_an_empty_conversation_has_an_empty_name() -> None:
    assert Transcript().ref == TranscriptRef() == transcript_of([]).ref


# ---- shortening ------------------------------------------------------------------------------------------------

LONG: Final = st.integers(0, 2000).map(lambda n: "x" * n)
TALK: Final = st.lists(
    st.builds(Message, role=st.sampled_from(["user", "assistant", "tool"]), content=LONG), max_size=8
)


@given(TALK)
def test_shortening_keeps_every_message_and_all_that_is_not_an_old_result(messages: list[Message]) -> None:
    short = shortened(messages)
    assert [m.role for m in short] == [m.role for m in messages]
    assert short[-KEEP_WHOLE:] == tuple(messages[-KEEP_WHOLE:])
    assert all(a == b for a, b in zip(short, messages, strict=True) if a.role != "tool")
    assert sum(len(m.text) for m in short) <= sum(len(m.text) for m in messages)
    assert shortened(short) == short
