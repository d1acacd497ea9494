"""Find words in what a server has stored, also in base64, in hexadecimal, and in compressed data."""

import binascii
import re
import zlib
from base64 import b64decode
from collections.abc import Collection, Iterator
from typing import Final

_BASE64: Final = re.compile(rb"[A-Za-z0-9+/_-]{16,}")
_HEX: Final = re.compile(rb"(?:[0-9a-fA-F]{2}){12,}")
_COMPRESSED: Final = re.compile(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]")
_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")
_NESTED: Final = 2
"""How deep a disguise may be in another one, such as compressed data in base64."""


def words_in(data: bytes, words: Collection[str]) -> set[str]:
    """Return those of the words that the data contains in any form."""
    return {word for form in _forms(data, _NESTED) for word in words if word.encode() in form}


def _forms(data: bytes, depth: int) -> Iterator[bytes]:
    yield data
    if depth:
        for hidden in _disguised(data):
            yield from _forms(hidden, depth - 1)


def _disguised(data: bytes) -> Iterator[bytes]:
    for found in _HEX.findall(data):
        yield from (binascii.unhexlify(text[: len(text) // 2 * 2]) for text in (found, found[1:]))
    for found in _BASE64.findall(data):
        run = found.translate(_URLSAFE)
        yield from (b64decode(text[: len(text) // 4 * 4]) for text in (run[start:] for start in range(4)))
    for found in _COMPRESSED.finditer(data):
        try:
            yield zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(data[found.start() :])
        except zlib.error:
            continue  # the bytes only look like the beginning of compressed data
