"""Shorten output: keep the start and the end, with a note about the omitted part between them."""

from dataclasses import dataclass, field
from typing import Final

RESULT_LIMIT: Final = 10_000
"""Maximum number of characters in a tool result for the model."""

_NOTE_ROOM: Final = 80


def clip(text: str, limit: int = RESULT_LIMIT, more: str = "") -> str:
    """Return `text`, or its start and end within `limit` characters. The note between them includes the `more` text."""
    if len(text) <= limit:
        return text
    half = (limit - _NOTE_ROOM - len(more)) // 2
    return text[:half] + _note(len(text) - 2 * half, more) + text[-half:]


@dataclass(slots=True)
class Collected:
    """Collects output in bounded memory by keeping its start and end."""

    limit: int
    head: str = ""
    tail: str = ""
    length: int = 0
    _half: int = field(init=False)

    def __post_init__(self) -> None:
        self._half = (self.limit - _NOTE_ROOM) // 2

    @property
    def truncated(self) -> bool:
        """Whether part of the output was dropped from the middle."""
        return self.length > self.limit

    def add(self, text: str) -> None:
        """Add the next chunk."""
        self.length += len(text)
        room = self.limit - len(self.head)
        self.head += text[:room]
        rest = text[room:]
        if rest:
            self.tail = (self.tail + rest)[-self.limit :]

    def text(self) -> str:
        """Return the stored text, which has at most `limit` characters."""
        if not self.truncated:
            return self.head
        # Cut at line ends if possible. Otherwise, part of a secret could remain and wouldn't be recognized.
        begin = self.head[: self._half]
        begin = begin[: begin.rfind("\n") + 1] or begin
        end = (self.head + self.tail)[-self._half :]
        end = end[end.find("\n") :] if "\n" in end else end
        return begin + _note(self.length - len(begin) - len(end)) + end


def _note(missing: int, more: str = "") -> str:
    return f"\n… {missing} characters left out here{more} …\n"
