"""Assemble a context from components within a token budget.

If the components don't all fit, those with the lowest priority are removed first, starting with the oldest. Critical
components are never removed. The remaining components keep their order, so that a provider's prompt cache remains
valid:

    primacy    the system prompt, which rarely changes
    body       the conversation, which only grows
    recency    components that change in every call, placed last so that the cache remains valid and the
               model pays attention to them
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

from loom.domain.core.messages import Message, reminder, user
from loom.domain.core.tokens import MESSAGE, text_tokens, tokens_of, within

BUDGET: Final = 100_000
"""The default number of tokens in a context."""
WORTH_KEEPING: Final = 30
"""The beginning of a text is kept only if at least this many of its tokens fit."""


class Priority(IntEnum):
    """A component's importance for a context."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    ESSENTIAL = 3
    CRITICAL = 4
    """Never removed and never truncated, regardless of the budget."""


class Placement(StrEnum):
    """A component's position in the context."""

    PRIMACY = "primacy"
    BODY = "body"
    RECENCY = "recency"


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A unit of a context that is kept or removed as a whole. A component is either a text or a group of messages that
    belong together.
    """

    name: str
    source: str
    """The component's origin, for display."""
    text: str = ""
    messages: tuple[Message, ...] = ()
    """The messages. Messages are only allowed in the body, where they keep their position."""
    priority: Priority = Priority.MEDIUM
    place: Placement = Placement.BODY
    truncatable: bool = False
    """Whether the beginning of the component is useful without the rest."""
    tagged: bool = True
    """Whether the component's text is enclosed in an XML tag with the component's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextPart:
    """The result for one component."""

    component: Component
    tokens: int
    """The number of tokens that the component uses in the context, or 0 if it was removed."""
    cut: int = 0
    """The number of tokens that were truncated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """The exact content of one model call, except the tools."""

    system: str
    messages: tuple[Message, ...]
    parts: tuple[ContextPart, ...]
    """The result for each component. Empty if they were not told apart, because all of them fit."""
    tokens: int
    """The total number of tokens as Loom counts them, including reserved tokens."""


def whole(texts: Sequence[Component], messages: Sequence[Message], *, tokens: int) -> Assembled:
    """Return a context of these texts and messages, which are known to fit."""
    return Assembled(
        system=_texts(texts, Placement.PRIMACY), messages=_with_late(messages, texts), parts=(), tokens=tokens
    )


def assemble(components: Sequence[Component], *, budget: int = BUDGET, reserved: int = 0) -> Assembled:
    """Return a context of at most `budget` tokens that contains these components. The `reserved` tokens count toward
    the budget.
    """
    parts = _fitted(components, budget - reserved)
    tokens = reserved + sum(part.tokens for part in parts)
    gap = any(part.component.messages and not part.tokens for part in parts)
    noted = gap and tokens + _NOTE_TOKENS <= budget
    stay = [part.component for part in parts if part.tokens]
    return Assembled(
        system=_texts(stay, Placement.PRIMACY),
        messages=_with_late(_body(parts) if noted else _messages(stay), stay),
        parts=parts,
        tokens=tokens + (_NOTE_TOKENS if noted else 0),
    )


def _with_late(messages: Sequence[Message], components: Sequence[Component]) -> tuple[Message, ...]:
    late = _texts(components, Placement.RECENCY)
    return (*messages, user(late, kind="reminder", late=True)) if late else tuple(messages)


def size_of(component: Component) -> int:
    """Return the component's approximate number of tokens, including its tag."""
    return tokens_of(component.messages) + (MESSAGE + text_tokens(rendered(component)) if component.text else 0)


def rendered(component: Component) -> str:
    """Return the component's text inside its tag. The text is escaped so that it can't close the tag."""
    if not component.tagged:
        return component.text
    inside = component.text.strip().replace(f"</{component.name}>", f"<\\/{component.name}>")
    return f"<{component.name}>\n{inside}\n</{component.name}>"


_NOTE: Final = reminder("Earlier messages were left out here, so that the rest fits the model's window.")
_NOTE_TOKENS: Final = _NOTE.tokens


def _fitted(components: Sequence[Component], room: int) -> tuple[ContextPart, ...]:
    """Truncate or remove components until the rest fits into `room`, together with a note. Return the result for each
    component.
    """
    sizes = [size_of(component) for component in components]
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
    """Return the component, truncated to at most `room` tokens, or None if truncating it isn't useful."""
    if not component.truncatable or room < WORTH_KEEPING:
        return None
    around = size_of(replace(component, text="x"))
    shorter = within(component.text.strip(), max(0, room - around))
    return replace(component, text=shorter) if shorter else None


def _messages(components: Iterable[Component]) -> tuple[Message, ...]:
    return tuple(message for component in components for message in component.messages)


def _body(parts: Sequence[ContextPart]) -> tuple[Message, ...]:
    """Return the messages that are kept, with a note in the place where the first message was removed."""
    body = [part for part in parts if part.component.messages]
    gap = next(place for place, part in enumerate(body) if not part.tokens)
    before, after = body[:gap], [part for part in body[gap:] if part.tokens]
    return (*_messages(p.component for p in before), _NOTE, *_messages(p.component for p in after))


def _texts(components: Iterable[Component], place: Placement) -> str:
    # A text has no position among the messages. Without a placement, it is placed at the end.
    places = (place, Placement.BODY) if place is Placement.RECENCY else (place,)
    wanted = (c for c in components if c.place in places and c.text.strip())
    return "\n\n".join(map(rendered, wanted))
