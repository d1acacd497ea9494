"""Nodes of code: what their functions receive, and when they are run again."""

from dataclasses import replace

import pytest

from loom.domain.agents.code_node import CodeNode, input_of
from loom.domain.core.messages import Message, Part, recollection, user
from loom.domain.core.tool_calls import Effect
from loom.domain.machine.delegation import ALONE

ANSWER = Message(role="assistant", content="done")


def test_a_node_works_on_what_was_said_since_its_last_answer() -> None:
    said = (user("first"), ANSWER, user(f"convert 21\n\n{ALONE}"), recollection("other", "memory"), user("in euros"))
    assert input_of(said, ALONE) == user("convert 21\n\nin euros")


def test_attachments_come_with_the_text() -> None:
    picture = Part(type="image", digest="ab" * 32, media_type="image/png")
    asked = replace(user("look"), content=(Part(type="text", text="look"), picture))
    assert input_of((asked,), ALONE).content == (Part(type="text", text="look"), picture)


def test_a_reminder_counts_if_nobody_has_written() -> None:
    reminder = user("the answer does not match the schema", kind="reminder")
    assert input_of((user("first"), ANSWER, reminder), ALONE).text == "the answer does not match the schema"


@pytest.mark.parametrize(("effect", "most"), [(Effect.READ, 5), (Effect.IDEMPOTENT, 5), (Effect.ONCE, 1)])
def test_the_effect_limits_the_attempts(effect: Effect, most: int) -> None:
    assert CodeNode(effect=effect, attempts=5).most_attempts == most
