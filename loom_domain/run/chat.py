"""A chat: the messages that a long-lived run answers one after the other.

received ──▶ queue ──▶ answering ──▶ answers
              the next one, as soon as the one before has its answer
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.frozen import replace
from loom.domain.core.messages import JsonObject, Part, Usage, usage_view
from loom.domain.core.requests import RunError, RunStatus

WhenBusy: TypeAlias = Literal["queue", "interrupt", "own_run"]
"""What a message does if the agent is at work: it waits, it stops the work, or a run of its own answers it."""
Handling: TypeAlias = Literal["answering", "queued", "interrupts", "replies", "answered", "own_run"]
"""What became of a message. `replies`: it answers the agent's question."""

MOST_ANSWERS: Final = 100
"""The number of answers that a chat remembers. The conversation and the stream contain the others."""
MOST_TEXT: Final = 100_000
"""The maximum number of characters in these answers. The newest one is always kept."""
MOST_IDS: Final = 1000
"""The number of answered messages whose ids are remembered, so that a message that is sent again has no effect."""
INTERRUPTED: Final = "MessageInterrupted"
"""The error of an answer that another message has stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMessage:
    """A person's message."""

    id: str
    """Chosen by the sender. A message that is sent again with the same id is the same message."""
    text: str
    by: str = ""
    at: datetime
    parts: tuple[Part, ...] = ()
    """The images, recordings and files of the message, which aren't stored yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatAnswer:
    """The answer to a message. It may be that the agent has failed, or was interrupted."""

    message_ids: tuple[str, ...]
    """The message, followed by those that answered the agent's questions meanwhile."""
    status: RunStatus
    """How the run of the agent ended, for this message."""
    output: str
    """The text of the answer. Empty if there is none."""
    at: datetime
    """When the answer was complete, in UTC."""
    structured_output: Any = None
    """The answer as a JSON value if the chat has an output schema, else None."""
    error: RunError | None = None
    """Why the agent failed. None unless it did."""
    turn: int = 0
    """The last turn that had begun. A fork can start after it."""
    turns: int = 0
    """The number of turns that the answer took."""
    usage: Usage = field(default_factory=Usage)
    """The tokens and model calls that the answer took."""
    cost: float | None = None
    """The cost in US dollars. None if the model's price is unknown."""
    tool_calls: int = 0
    """The number of tool calls that the answer took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageState:
    """What has become of a message."""

    handling: Handling | None = None
    """None if the chat doesn't know the message."""
    answer: ChatAnswer | None = None
    """Set if the message is answered and the chat remembers the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What the run had used when it began to answer a message."""

    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0
    tool_calls: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """The messages of a chat, and the answers to the latest of them."""

    answering: tuple[ChatMessage, ...] = ()
    """The message that the agent works on, followed by those that answered its questions. Empty while it waits."""
    queue: tuple[ChatMessage, ...] = ()
    since: datetime
    """The time at which the agent began to work on the message, or to wait for one."""
    before: Spent = field(default_factory=Spent)
    answers: tuple[ChatAnswer, ...] = ()
    """The latest answers, oldest first."""
    ids: tuple[str, ...] = ()
    """The ids of the latest messages that were answered, oldest first."""
    own_runs: tuple[str, ...] = ()
    """The ids of the latest messages that were left to runs of their own."""
    received: int = 0
    answered: int = 0
    """The number of messages received and answered so far."""

    @property
    def is_waiting(self) -> bool:
        """Whether the agent waits for a message."""
        return not self.answering

    def handling_of(self, message_id: str) -> Handling | None:
        """Return what has become of a message, or None if the chat doesn't know it."""
        if any(message.id == message_id for message in self.answering):
            return "answering"
        if any(message.id == message_id for message in self.queue):
            return "queued"
        if message_id in self.own_runs:
            return "own_run"
        return "answered" if message_id in self.ids else None

    def state_of(self, message_id: str) -> MessageState:
        """Return what has become of a message, and the answer to it."""
        return MessageState(handling=self.handling_of(message_id), answer=self.answer_to(message_id))

    def answer_to(self, message_id: str) -> ChatAnswer | None:
        """Return the answer to a message if the chat has answered it and remembers the answer."""
        return next((answer for answer in self.answers if message_id in answer.message_ids), None)

    def with_answer(self, answer: ChatAnswer) -> "Chat":
        """Return the chat with the answer to the current message. It then waits for another message."""
        return replace(
            self,
            answering=(),
            since=answer.at,
            answers=_latest((*self.answers, answer)),
            ids=(*self.ids, *answer.message_ids)[-MOST_IDS:],
            answered=self.answered + len(answer.message_ids),
        )


def _latest(answers: Sequence[ChatAnswer]) -> tuple[ChatAnswer, ...]:
    kept: list[ChatAnswer] = []
    text = 0
    for answer in reversed(answers[-MOST_ANSWERS:]):
        text += len(answer.output)
        if kept and text > MOST_TEXT:
            break
        kept.insert(0, answer)
    return tuple(kept)


def begun_with(text: str, message_id: str | None, at: datetime) -> Chat:
    """Return a chat that begins with this message."""
    return Chat(answering=(ChatMessage(id=message_id or "m1", text=text, at=at),), since=at, received=1)


def answer_view(answer: ChatAnswer) -> JsonObject:
    """Return an answer under its public names."""
    return {
        "message_ids": list(answer.message_ids),
        "status": answer.status,
        "output": answer.output,
        "structured_output": answer.structured_output,
        "error": asdict(answer.error) if answer.error else None,
        "turn": answer.turn,
        "turns": answer.turns,
        "usage": usage_view(answer.usage),
        "cost": answer.cost,
        "tool_calls": answer.tool_calls,
        "at": answer.at.isoformat(),
    }


def chat_view(chat: Chat) -> JsonObject:
    """Return the answer to the `status` query about a chat, without the texts of its answers."""
    return {
        "received": chat.received,
        "answered": chat.answered,
        "answering": [message.id for message in chat.answering],
        "queue": [message.id for message in chat.queue],
        "since": chat.since.isoformat(),
    }
