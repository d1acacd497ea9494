"""Assemble a context from components within a budget of tokens.

If not everything fits, components of the lowest priority are removed first, the oldest first. Critical components are
never removed. The others keep their order, so that a provider's prompt cache stays valid:

    primacy    the system prompt, which rarely changes
    body       the conversation, which only grows
    recency    what is new in every call, at the end, where it gets attention and leaves the cache intact
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

from loom.domain.core.messages import Message, reminder, user
from loom.domain.core.tokens import MESSAGE, conversation_tokens, message_tokens, text_tokens, within

BUDGET: Final = 100_000
"""Default number of tokens of a context."""
WORTH_KEEPING: Final = 30
"""Tokens below which the beginning of a text is not worth keeping."""


class Priority(IntEnum):
    """How important a component is for a context."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    ESSENTIAL = 3
    CRITICAL = 4
    """Never removed and never cut, whatever the budget."""


class Placement(StrEnum):
    """Where in the context a component is placed."""

    PRIMACY = "primacy"
    BODY = "body"
    RECENCY = "recency"


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A unit of a context that stays or is removed as a whole: a text, or messages that belong together."""

    name: str
    source: str
    """Where it is defined, for people."""
    text: str = ""
    messages: tuple[Message, ...] = ()
    """Only in the body, at their own position."""
    priority: Priority = Priority.MEDIUM
    place: Placement = Placement.BODY
    truncatable: bool = False
    """Whether its beginning alone is useful."""
    tagged: bool = True
    """Whether its text is enclosed in an XML tag with its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextPart:
    """The outcome for one component."""

    component: Component
    tokens: int
    """Its tokens in the context; 0 if it was removed."""
    cut: int = 0
    """Tokens that were cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """Exactly what one model call sees, except the tools."""

    system: str
    messages: tuple[Message, ...]
    parts: tuple[ContextPart, ...]
    tokens: int
    """All tokens as Loom counts them, including the reserved ones."""


def assemble(
    components: Sequence[Component], *, budget: int = BUDGET, reserved: int = 0, sizes: Sequence[int] = ()
) -> Assembled:
    """The context of these components in at most `budget` tokens, including `reserved` ones. Pass known `sizes`."""
    parts = _fitted(components, sizes or [size_of(component) for component in components], budget - reserved)
    tokens = reserved + sum(part.tokens for part in parts)
    gap = any(part.component.messages and not part.tokens for part in parts)
    noted = gap and tokens + _NOTE_TOKENS <= budget
    stay = [part.component for part in parts if part.tokens]
    messages = _body(parts) if noted else _messages(stay)
    if late := _texts(stay, Placement.RECENCY):
        messages = (*messages, user(late, kind="reminder", late=True))
    return Assembled(
        system=_texts(stay, Placement.PRIMACY),
        messages=messages,
        parts=parts,
        tokens=tokens + (_NOTE_TOKENS if noted else 0),
    )


def size_of(component: Component) -> int:
    """Approximate tokens of the component, including its tag."""
    return conversation_tokens(component.messages) + (
        MESSAGE + text_tokens(rendered(component)) if component.text else 0
    )


def rendered(component: Component) -> str:
    """The component's text in its tag, which nothing in the text can close."""
    if not component.tagged:
        return component.text
    inside = component.text.strip().replace(f"</{component.name}>", f"<\\/{component.name}>")
    return f"<{component.name}>\n{inside}\n</{component.name}>"


_NOTE: Final = reminder("Earlier messages were left out here, so that the rest fits the model's window.")
_NOTE_TOKENS: Final = message_tokens(_NOTE)


def _fitted(components: Sequence[Component], sizes: Sequence[int], room: int) -> tuple[ContextPart, ...]:
    """The outcome for each component, so that together they fit, with a note where one is missing."""
    parts = [ContextPart(component=c, tokens=size) for c, size in zip(components, sizes, strict=True)]
    over = sum(sizes) - room
    if over <= 0:
        return tuple(parts)
    over += _NOTE_TOKENS
    for place in sorted(range(len(parts)), key=lambda place: (components[place].priority, place)):
        if over <= 0 or components[place].priority is Priority.CRITICAL:
            break
        shorter = _cut(components[place], sizes[place] - over)
        left = 0 if shorter is None else size_of(shorter)
        parts[place] = ContextPart(component=shorter or components[place], tokens=left, cut=sizes[place] - left)
        over -= sizes[place] - left
    return tuple(parts)


def _cut(component: Component, room: int) -> Component | None:
    """The component in at most `room` tokens, or None if that is not worth it."""
    if not component.truncatable or room < WORTH_KEEPING:
        return None
    around = size_of(replace(component, text="x"))
    shorter = within(component.text.strip(), max(0, room - around))
    return replace(component, text=shorter) if shorter else None


def _messages(components: Iterable[Component]) -> tuple[Message, ...]:
    return tuple(message for component in components for message in component.messages)


def _body(parts: Sequence[ContextPart]) -> tuple[Message, ...]:
    """The messages that stay, with a note if the first ones are missing."""
    body = [part for part in parts if part.component.messages]
    gap = next(place for place, part in enumerate(body) if not part.tokens)
    before, after = body[:gap], [part for part in body[gap:] if part.tokens]
    return (*_messages(p.component for p in before), _NOTE, *_messages(p.component for p in after))


def _texts(components: Iterable[Component], place: Placement) -> str:
    # A text has no position among the messages. Without a placement, it is at the end.
    places = (place, Placement.BODY) if place is Placement.RECENCY else (place,)
    wanted = (c for c in components if c.place in places and c.text.strip())
    return "\n\n".join(map(rendered, wanted))
