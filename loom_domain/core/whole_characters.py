"""Text that consists of whole Unicode characters.

JSON can contain half of a surrogate pair (`\\ud83d`), also at the end of a piece of text whose next piece begins with
the other half. UTF-8 can't encode such a half, so no store, provider or tool accepts it.
"""

from typing import Any, Final

_UTF_16: Final = "utf-16-le"


def whole_characters(text: str) -> str:
    """Return the text with adjacent halves of a surrogate pair joined, and lone halves replaced with U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(_UTF_16, "surrogatepass").decode(_UTF_16, "replace")
    return text


def accepted_text(text: str) -> str:
    """Return the text as every store and every server accepts it: with whole characters, and U+FFFD instead of NUL."""
    return whole_characters(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


def with_whole_characters(value: Any) -> Any:
    """Return a JSON value with whole characters in all its texts and names."""
    match value:
        case str():
            return whole_characters(value)
        case dict():
            return {whole_characters(name): with_whole_characters(inside) for name, inside in value.items()}
        case list():
            return [with_whole_characters(inside) for inside in value]
        case _:
            return value


class CharacterPieces:
    """Text that arrives in pieces. Half of a surrogate pair at the end of a piece is held back until the next one."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the whole characters that are known after this piece."""
        text = self._held + piece
        self._held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return whole_characters(text.removesuffix(self._held))

    def flush(self) -> str:
        """Return U+FFFD if the text ended with half of a surrogate pair."""
        held, self._held = self._held, ""
        return whole_characters(held)
