"""Estimate the tokens of a context without a tokenizer, corrected by what providers count.

Four Latin letters are one token. Digits count more, two-byte letters (Cyrillic, Greek, Arabic) half a token, and a
character of three or more bytes (Chinese, Japanese, Korean, emoji) one token: at four to a token, the estimate for
Chinese would be four times too low. `learned` corrects the remaining error with the provider's counts.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from loom.domain.core.messages import Message, Part, ToolCall, canonical
from loom.domain.core.tool_calls import ToolSpec

MESSAGE: Final = 4
"""Tokens around a message: its role and its delimiters."""
TOOL: Final = 8
"""Tokens around a tool's description."""
IMAGE: Final = 1600
"""What providers count for an image of usual size. They scale larger ones down."""
BINARY: Final = 20
"""Base64 characters of a file or a recording per token."""

PLAUSIBLE: Final = (0.5, 3.0)
"""Plausible ratios of a provider's count to Loom's. Others refer to something else."""

_DIGITS: Final = b"0123456789"
_TWO_BYTES: Final = bytes(range(0xC2, 0xE0))
_MORE_BYTES: Final = bytes(range(0xE0, 0xF8))


def text_tokens(text: str) -> int:
    """Approximate tokens of a text."""
    data = text.encode("utf-8", "surrogatepass")
    digits = _count(data, _DIGITS)
    if text.isascii():
        return -(-(2 * digits + len(data)) // 4)
    two, more = _count(data, _TWO_BYTES), _count(data, _MORE_BYTES)
    return -(-(len(text) - two - more + 2 * digits + 2 * two + 4 * more) // 4)


def message_tokens(message: Message) -> int:
    """Approximate tokens of a message."""
    content = message.content
    said = text_tokens(content) if isinstance(content, str) else sum(map(_part_tokens, content))
    return MESSAGE + said + sum(map(_call_tokens, message.tool_calls))


def conversation_tokens(messages: Iterable[Message]) -> int:
    """Approximate tokens of these messages."""
    return sum(map(message_tokens, messages))


def tools_tokens(tools: Sequence[ToolSpec]) -> int:
    """Approximate tokens of the descriptions of these tools."""
    return sum(TOOL + text_tokens(tool.name + tool.description + canonical(tool.parameters)) for tool in tools)


def learned(ratio: float, *, counted: int, estimated: int) -> float:
    """The new ratio of the provider's count to Loom's: half of the old one, half of the latest."""
    return round((ratio + counted / estimated) / 2, 3) if is_plausible(counted, estimated) else ratio


def is_plausible(counted: int, estimated: int) -> bool:
    """Whether a provider's count can refer to what was estimated."""
    return PLAUSIBLE[0] * estimated <= counted <= PLAUSIBLE[1] * estimated if estimated else False


def within(text: str, most: int, note: str = " …") -> str:
    """The beginning of the text in at most that many tokens, with a note where it was cut."""
    if text_tokens(text) <= most:
        return text
    length = len(text)
    while length and (size := text_tokens(text[:length] + note)) > most:
        length = min(length - 1, length * most // size)
    return text[:length].rstrip() + note if length else ""


def _count(data: bytes, wanted: bytes) -> int:
    return len(data) - len(data.translate(None, wanted))


def _part_tokens(part: Part) -> int:
    if part.type == "text":
        return text_tokens(part.text)
    return IMAGE if part.type == "image" else max(IMAGE, len(part.data) // BINARY)


def _call_tokens(call: ToolCall) -> int:
    given = call.malformed if call.malformed is not None else canonical(call.arguments)
    return MESSAGE + text_tokens(call.name + given)
