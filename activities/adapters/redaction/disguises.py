"""Find this process's secrets in disguise: spaced, folded over lines, reversed, in another case, or encoded.

The text and the secrets are squeezed: separators are removed, and letters are changed to lower case. A squeezed secret
is then found, no matter where the separators were. Long words are also decoded to find secrets that are encoded twice.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import AnyStr, Final
from urllib.parse import quote

from loom.activities.adapters.redaction.locations import Span

SHORTEST: Final = 10
"""Minimum length of a squeezed secret. Shorter secrets also occur in squeezed ordinary text."""

SHORTEST_ENCODED: Final = 8
"""Minimum length of a squeezed encoding of a secret. Encodings don't occur in ordinary text."""

LONGEST_TAIL: Final = 600
"""Number of characters at the end of a text that are searched for a truncated secret."""

LEAST_TAIL: Final = 4
"""Minimum number of characters that are recognized as the start of a secret."""

_LOWER: Final = bytes(range(256)).lower()
_SEPARATORS: Final = b" \t\r\n\v\f-_.,:;|+/\\\"'`*>=&~"
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/_-]{20,}(?:\r?\n[ \t]{0,8}[A-Za-z0-9+/_-]{1,100}(?![\w+/-]))*")
_HEX: Final = re.compile(rb"[0-9a-fA-F]+")
_URL_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")


class Disguises:
    """The forms of the known secrets that are searched for in squeezed text."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = (form for value in values for form in _forms(value.encode("utf-8", "surrogatepass")))
        self._forms = tuple(dict.fromkeys(forms))

    def spans(self, text: str, words: Iterable[Span]) -> Iterator[Span]:
        """Yield the spans of all disguised secrets. `words` are the spans of the text's long words."""
        if not self._forms:
            return
        squeezed = _squeezed(text.encode("utf-8", "surrogatepass"))
        if found := tuple(self._in(squeezed)):
            places = _places(text)
            yield from ((places[start], places[end - 1] + 1) for start, end in found)
        done = 0
        for start, _ in words:
            if start < done or (word := _ENCODED.match(text, start)) is None:
                continue
            done = word.end()
            if self._is_encoded(word[0].encode()):
                yield word.span()

    def unfinished(self, text: str) -> int | None:
        """Return the start of a secret that is cut off at the end of the text, or None if there is no such secret."""
        if not self._forms:
            return None
        before = max(0, len(text) - LONGEST_TAIL)
        places = _places(text[before:])
        tail = _squeezed(text[before:].encode("utf-8", "surrogatepass"))
        lengths = (overlap(tail, form) for form in self._forms)
        longest = max(lengths, default=0)
        return before + places[len(tail) - longest] if longest >= LEAST_TAIL else None

    def _in(self, squeezed: bytes) -> Iterator[Span]:
        for form in self._forms:
            at = squeezed.find(form)
            while at >= 0:
                yield at, at + len(form)
                at = squeezed.find(form, at + len(form))

    def _is_encoded(self, word: bytes) -> bool:
        return any(form in _squeezed(text) for text in _decoded(word) for form in self._forms)


def overlap(tail: AnyStr, form: AnyStr) -> int:
    """Return the length of the form's longest proper prefix at the end of the tail, or 0 if it is too short."""
    lengths = range(min(len(form) - 1, len(tail)), LEAST_TAIL - 1, -1)
    return next((length for length in lengths if tail.endswith(form[:length])), 0)


def _squeezed(text: bytes) -> bytes:
    return text.translate(_LOWER, _SEPARATORS)


def _places(text: str) -> list[int]:
    """Return, for each byte of the squeezed text, its position in the original text."""
    return [
        at for at, char in enumerate(text) for byte in char.encode("utf-8", "surrogatepass") if byte not in _SEPARATORS
    ]


def _forms(value: bytes) -> Iterator[bytes]:
    """Yield the squeezed value and the parts of its encodings that don't depend on the surrounding text."""
    for plain in map(_squeezed, (value, value[::-1])):
        if _is_unusual(plain):
            yield plain
    encodings = [value.hex().encode(), quote(value, safe="").encode()]
    for before in range(3):
        encoded = b64encode(bytes(before) + value)
        encodings.append(encoded[-(-before * 8 // 6) : (before + len(value)) * 8 // 6])
    for encoding in encodings:
        if encoding != value and len(squeezed := _squeezed(encoding)) >= SHORTEST_ENCODED:
            yield squeezed


def _is_unusual(plain: bytes) -> bool:
    """Whether the squeezed value can't consist of a few ordinary words."""
    has_digits = any(byte in b"0123456789" for byte in plain)
    return len(plain) >= (SHORTEST if has_digits and not plain.isdigit() else 2 * SHORTEST)


def _decoded(word: bytes) -> Iterator[bytes]:
    """Yield all possible decodings of a long word."""
    joined = b"".join(word.split())
    if _HEX.fullmatch(joined):
        yield from (bytes.fromhex(joined[at : at + (len(joined) - at) // 2 * 2].decode()) for at in (0, 1))
    elif joined.islower() or joined.isupper() or not any(byte in b"0123456789" for byte in joined):
        return
    standard = joined.translate(_URL_TO_STANDARD)
    for at in range(4):
        whole = at + (len(standard) - at) // 4 * 4
        # The last characters encode at most two bytes. Complete them, so that they are decoded too.
        rest = standard[whole:] if len(standard) - whole > 1 else b""
        yield b64decode(standard[at:whole] + rest + b"=" * (-len(rest) % 4))
