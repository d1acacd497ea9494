"""Shorten output: the start and the end stay, with a note about what is missing between them."""

from dataclasses import dataclass, field
from typing import Final

RESULT_LIMIT: Final = 10_000
"""Maximum characters of a tool result that the model reads."""

_NOTE_ROOM: Final = 80


def clip(text: str, limit: int = RESULT_LIMIT, more: str = "") -> str:
    """`text`, or its start and its end within `limit` characters. The note between them says `more`."""
    if len(text) <= limit:
        return text
    half = (limit - _NOTE_ROOM - len(more)) // 2
    return text[:half] + _note(len(text) - 2 * half, more) + text[-half:]


@dataclass(slots=True)
class Collected:
    """Output as it arrives, in bounded memory: its start and its end."""

    limit: int
    head: str = ""
    tail: str = ""
    length: int = 0
    _half: int = field(init=False)

    def __post_init__(self) -> None:
        self._half = (self.limit - _NOTE_ROOM) // 2

    @property
    def truncated(self) -> bool:
        """Whether something in the middle is missing."""
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
        """The stored text, at most `limit` characters."""
        if not self.truncated:
            return self.head
        # At line ends if possible, so that no unrecognizable half of a secret remains.
        begin = self.head[: self._half]
        begin = begin[: begin.rfind("\n") + 1] or begin
        end = (self.head + self.tail)[-self._half :]
        end = end[end.find("\n") :] if "\n" in end else end
        return begin + _note(self.length - len(begin) - len(end)) + end


def _note(missing: int, more: str = "") -> str:
    return f"\n… {missing} characters left out here{more} …\n"
