"""Nodes of code: agents whose work is done by a user's function instead of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loom.domain.core.messages import Message, Part, is_from_person
from loom.domain.core.tool_calls import Effect

DEFAULT_TIMEOUT: Final = 120.0
LONGEST_TIMEOUT: Final = 7 * 86_400.0
DEFAULT_ATTEMPTS: Final = 3
MOST_ATTEMPTS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeNode:
    """How a node's function runs."""

    effect: Effect = Effect.ONCE
    """The consequence of running the function twice. After a failure, a node with the effect `once` isn't run again."""
    timeout: float = DEFAULT_TIMEOUT
    """The timeout of one attempt, in seconds."""
    attempts: int = DEFAULT_ATTEMPTS
    """The number of attempts if the function fails and its effect isn't `once`."""

    @property
    def most_attempts(self) -> int:
        """The number of attempts if the function fails."""
        return 1 if self.effect is Effect.ONCE else self.attempts


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFunction:
    """A user's function, async or sync, that works as an agent."""

    name: str
    function: Callable[..., Any]
    code: str = ""
    """A digest of its source, or an empty string if its source can't be read."""


def input_of(messages: Sequence[Message], notice: str) -> Message:
    """Return the message that a node works on: what people, or the agent that delegated the work, have written since
    the node's last answer. It doesn't contain the `notice` that Loom appends for models.
    """
    new: list[Message] = []
    for message in reversed(messages):
        if message.role == "assistant":
            break
        if message.role == "user":
            new.insert(0, message)
    # A reminder, for example to repair an answer, counts only if nobody has written.
    said = [message for message in new if is_from_person(message)] or new[-1:]
    text = "\n\n".join(message.text.removesuffix(notice).strip() for message in said)
    parts = tuple(p for m in said if not isinstance(m.content, str) for p in m.content if p.type != "text")
    return Message(role="user", content=(Part(type="text", text=text), *parts) if parts else text)
