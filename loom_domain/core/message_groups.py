"""What of a conversation belongs together: a model's answer, and the results of the tool calls in it.

A provider refuses a call without its result and a result without its call. So whatever leaves messages out leaves out
whole groups.
"""

from collections.abc import Sequence
from typing import TypeAlias

from loom.domain.core.messages import Message

Group: TypeAlias = tuple[int, int]
"""Positions of the first message of a group and of the one after its last."""


def groups_of(messages: Sequence[Message]) -> tuple[Group, ...]:
    """The groups in order, together the whole conversation; a message that stands for itself is one of its own."""
    ends = _ends(messages)
    groups: list[Group] = []
    place = 0
    while place < len(messages):
        start, stop = place, place + 1
        while place < stop:  # what stands inside may reach further
            stop = max(stop, ends[place])
            place += 1
        groups.append((start, stop))
    return tuple(groups)


def last_turn(messages: Sequence[Message], groups: Sequence[Group]) -> int:
    """The position of the model's last answer, whose results it has not seen yet; the end where it has said nothing."""
    return next((start for start, _ in reversed(groups) if messages[start].role == "assistant"), len(messages))


def unanswered(messages: Sequence[Message]) -> bool:
    """Whether a call in these messages has no result in them."""
    called = {call.id for message in messages for call in message.tool_calls}
    return bool(called - {message.tool_call_id for message in messages if message.role == "tool"})


def is_from_person(message: Message) -> bool:
    """Whether a person said this; reminders and recollections are the framework's."""
    return message.role == "user" and "kind" not in message.metadata


def _ends(messages: Sequence[Message]) -> list[int]:
    """For each message the position after the last that answers a call in it."""
    ends = [place + 1 for place in range(len(messages))]
    callers: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in callers:
            ends[callers[message.tool_call_id]] = place + 1
        callers.update((call.id, place) for call in message.tool_calls)
    return ends
