"""Estimate the number of tokens in a context without a tokenizer, and use the provider's counts to correct the
estimate.

Four Latin letters count as one token. Digits count more, a two-byte letter (Cyrillic, Greek, Arabic) counts as half a
token, and a character of three or more bytes (Chinese, Japanese, Korean, emoji) counts as one token. If every four
characters counted as one token, the estimate for Chinese would be four times too low. `learned` uses the provider's
counts to correct the remaining error.
"""

from collections.abc import Iterable
from typing import Final, Protocol

MESSAGE: Final = 4
"""The token overhead per message, for its role and delimiters."""
TOOL: Final = 8
"""The token overhead per tool description."""
IMAGE: Final = 1600
"""The number of tokens that providers typically count for an image. They scale down larger images."""
BINARY: Final = 20
"""The number of base64 characters per token in a file or an audio recording."""

PLAUSIBLE: Final = (0.5, 3.0)
"""The plausible range for the ratio of a provider's count to Loom's estimate. Other ratios are ignored."""

_DIGITS: Final = b"0123456789"
_TWO_BYTES: Final = bytes(range(0xC2, 0xE0))
_MORE_BYTES: Final = bytes(range(0xE0, 0xF8))


def text_tokens(text: str) -> int:
    """Estimate the number of tokens in a text."""
    data = text.encode("utf-8", "surrogatepass")
    digits = _count(data, _DIGITS)
    if text.isascii():
        return -(-(2 * digits + len(data)) // 4)
    two, more = _count(data, _TWO_BYTES), _count(data, _MORE_BYTES)
    return -(-(len(text) - two - more + 2 * digits + 2 * two + 4 * more) // 4)


class Counted(Protocol):
    """A message, or the description of a tool."""

    @property
    def tokens(self) -> int:
        """The estimated number of tokens."""
        ...


def tokens_of(values: Iterable[Counted]) -> int:
    """Estimate the number of tokens in these messages or descriptions."""
    return sum(value.tokens for value in values)


def learned(ratio: float, *, counted: int, estimated: int) -> float:
    """Return the updated ratio of the provider's count to Loom's count. It is the mean of the previous ratio and the
    latest one.
    """
    return round((ratio + counted / estimated) / 2, 3) if is_plausible(counted, estimated) else ratio


def is_plausible(counted: int, estimated: int) -> bool:
    """Whether a provider's count is plausible, given Loom's estimate."""
    return PLAUSIBLE[0] * estimated <= counted <= PLAUSIBLE[1] * estimated if estimated else False


def within(text: str, most: int, note: str = " …") -> str:
    """Truncate the text to at most `most` tokens and append `note` if it was truncated."""
    if text_tokens(text) <= most:
        return text
    length = len(text)
    while length and (size := text_tokens(text[:length] + note)) > most:
        length = min(length - 1, length * most // size)
    return text[:length].rstrip() + note if length else ""


def _count(data: bytes, wanted: bytes) -> int:
    return len(data) - len(data.translate(None, wanted))
