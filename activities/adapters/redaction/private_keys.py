"""Find armored private keys in files, JSON and shell variables. The keys may be truncated."""

import re
from collections.abc import Iterator
from typing import Final

from loom.activities.adapters.redaction.locations import Span, positions

LONGEST_KEY: Final = 32_768
"""Maximum number of characters in a private key with its armor. A 16,384-bit RSA key has 13,000 characters."""

_BEGIN: Final = re.compile(r"-----BEGIN[A-Z0-9 ]{0,40} PRIVATE KEY(?: BLOCK)?-----")
_END: Final = re.compile(r"-----END[A-Z0-9 ]{0,40} PRIVATE KEY(?: BLOCK)?-----")
_MORE: Final = re.compile(r"(?:(?!-----)[\s\S]){0,80}?[A-Za-z0-9+/=]{16,}")
"""Matches text that can surround a line of a key: a line end, quotes, a number, an indent or an armor header."""
_CLOSE: Final = re.compile(rf"(?:(?!-----)[\s\S]){{0,80}}?{_END.pattern}")
_LINE: Final = re.compile(r"[^A-Za-z0-9+/=]{0,40}(?:\\{1,4}n)?[A-Za-z0-9+/=]{40,}")
_LAST_LINE: Final = re.compile(r"[^A-Za-z0-9+/=]{1,8}[A-Za-z0-9+/=]{1,39}\Z")
_BARE_LINE: Final = re.compile(r"[ \t\"']{0,40}[A-Za-z0-9+/=]{16,100}(?:\\n)?[\"',+ \t]{0,8}\r?\n?")


def private_keys(text: str) -> Iterator[Span]:
    """Yield private keys with their armor. For a truncated key, yield the available part."""
    for at in positions(text, "-----BEGIN"):
        if (begin := _BEGIN.match(text, at)) is not None and (end := _key_end(text, begin.end())) is not None:
            yield at, end
    for at in positions(text, "-----END"):
        if (end_line := _END.match(text, at)) is not None and (start := start_of_lines(text, at)) < at:
            yield start, end_line.end()


def open_key(text: str) -> int | None:
    """Return the start of a key whose end isn't in the text, or None if there is no such key."""
    at = text.rfind("-----BEGIN")
    begin = _BEGIN.match(text, at) if at >= 0 else None
    return None if begin is None or _END.search(text, begin.end()) else at


def start_of_lines(text: str, end: int) -> int:
    """Return the start of the lines that precede `end` and look like lines of a key."""
    start = end
    while end - start < LONGEST_KEY:
        before = text.rfind("\n", 0, max(0, start - 1)) + 1
        if before >= start or not _BARE_LINE.fullmatch(text, before, start):
            break
        start = before
    return start


def _key_end(text: str, at: int) -> int | None:
    closed = _run(_MORE, text, at)
    if closed > at and (end := _CLOSE.match(text, closed)) is not None:
        return end.end()
    cut = _run(_LINE, text, at)
    last = _LAST_LINE.match(text, cut)
    return last.end() if last is not None else cut if cut > at else None


def _run(pattern: re.Pattern[str], text: str, at: int) -> int:
    limit = at + LONGEST_KEY
    while at < limit and (found := pattern.match(text, at)) is not None:
        at = found.end()
    return at
