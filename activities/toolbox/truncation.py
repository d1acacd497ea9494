"""Keeping output short: the beginning and the end stay, a note says what is missing between them."""

from dataclasses import dataclass, field
from typing import Final

RESULT_LIMIT: Final = 10_000
"""Characters of a tool result that the model reads."""

_NOTE_ROOM: Final = 80


def clip(text: str, limit: int = RESULT_LIMIT, more: str = "") -> str:
    """`text`, or its beginning and its end within `limit` characters; the note between them says `more`."""
    if len(text) <= limit:
        return text
    half = (limit - _NOTE_ROOM - len(more)) // 2
    return text[:half] + _note(len(text) - 2 * half, more) + text[-half:]


@dataclass(slots=True)
class Collected:
    """Output as it arrives, in bounded memory: the first and the last part of whatever comes."""

    limit: int
    head: str = ""
    tail: str = ""
    length: int = 0
    _half: int = field(init=False)

    def __post_init__(self) -> None:
        self._half = (self.limit - _NOTE_ROOM) // 2

    @property
    def truncated(self) -> bool:
        """Something in the middle is gone."""
        return self.length > self.limit

    def add(self, text: str) -> None:
        """Take in the next piece."""
        self.length += len(text)
        room = self.limit - len(self.head)
        self.head += text[:room]
        rest = text[room:]
        if rest:
            self.tail = (self.tail + rest)[-self.limit :]

    def text(self) -> str:
        """What was kept, at most `limit` characters."""
        if not self.truncated:
            return self.head
        # At line ends where there are any, so that no half of a secret stays that nobody would know as one.
        begin = self.head[: self._half]
        begin = begin[: begin.rfind("\n") + 1] or begin
        end = (self.head + self.tail)[-self._half :]
        end = end[end.find("\n") :] if "\n" in end else end
        return begin + _note(self.length - len(begin) - len(end)) + end


def _note(missing: int, more: str = "") -> str:
    return f"\n… {missing} characters left out here{more} …\n"
