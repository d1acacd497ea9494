"""What a model call sees of a conversation that has grown too long for it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from loom_domain.messages import Message

KEEP_WHOLE: Final = 4
"""Messages at the end that are never shortened."""
SHORT: Final = 200
"""Characters of an old tool result that stay."""


def shortened(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with old tool results cut to their beginning; calls and results stay together."""
    head = messages[: max(0, len(messages) - KEEP_WHOLE)]
    return tuple(_cut(message) for message in head) + tuple(messages[len(head) :])


def _cut(message: Message) -> Message:
    if message.role != "tool" or len(message.text) <= 2 * SHORT:  # so that what was cut once stays as it is
        return message
    dropped = len(message.text) - SHORT
    return replace(message, content=f"{message.text[:SHORT]}\n[{dropped} characters dropped to fit the model's window]")
