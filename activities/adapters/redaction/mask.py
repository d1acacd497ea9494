"""Redact secrets in text: the known secrets of this process in any form, and values that look like secrets.

A secret is identified by its value, its format, its location, or the name that it is assigned to. Overlapping matches
are replaced with a single `[REDACTED]`. The rest of the text stays unchanged, byte for byte.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from loom.activities.adapters.redaction.disguises import Disguises, overlap
from loom.activities.adapters.redaction.known_secrets import hidden_parts, spellings
from loom.activities.adapters.redaction.locations import (
    CONTEXT,
    LONGEST_KEY,
    Span,
    assigned,
    authorization,
    discord_tokens,
    headers,
    is_secret_under,
    kubernetes_secrets,
    open_key,
    options,
    pgpass,
    positions,
    private_keys,
    start_of_lines,
    userinfo,
)
from loom.activities.adapters.redaction.patterns import (
    ANYWHERE,
    BEFORE_RUNS,
    DUMMY,
    IN_RUNS,
    MASK,
    REACH,
    RUN,
    Shape,
    compiled,
)

PASSES: Final = 8
"""Maximum number of passes over a text. Two passes are enough for all realistic texts."""


class SecretMask:
    """A `Redactor` that is thread-safe and needs to be created only once."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        parts = hidden_parts(known)
        self._known = spellings(parts)
        self._disguises = Disguises(part for part in parts if part not in MASK)

    def redact(self, text: str) -> str:
        """Return the text with every secret replaced by `[REDACTED]`. A text without secrets is returned unchanged."""
        # A redaction can expose the start or end of another secret, so search the text again.
        for _ in range(PASSES):
            if not (spans := self.spans(text)):
                break
            text = masked(text, spans)
        return text

    def redact_json(self, value: Any) -> Any:
        """Redact a JSON value. The key of an object's member is treated as the name of the member's value."""
        match value:
            case str():
                return self.redact(value)
            case Mapping():
                return {self.redact(name): self._member(name, member) for name, member in value.items()}
            case list() | tuple():
                return [self.redact_json(each) for each in value]
            case _:
                return value

    def _member(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and is_secret_under(name, value):
            return MASK
        return self.redact_json(value)

    def spans(self, text: str) -> list[Span]:
        """Return the spans of all secrets, in order and without overlaps."""
        if not text:
            return []
        words = [found.span() for found in RUN.finditer(text)]
        disguised = self._disguises.spans(text, words)
        return merged([*self._known_in(text), *disguised, *_formats(text, words), *_places(text)])

    def unfinished(self, text: str) -> int | None:
        """Return the start of a disguised known secret that is cut off at the end of the text, or None."""
        return self._disguises.unfinished(text)

    def begun(self, text: str) -> int | None:
        """Return the start of a known secret, disguised or not, that is cut off at the end of the text, or None."""
        places = [len(text) - overlap(text, spelt) for spelt in self._known]
        if (disguised := self.unfinished(text)) is not None:
            places.append(disguised)
        start = min(places, default=len(text))
        return start if start < len(text) else None

    def _known_in(self, text: str) -> Iterator[Span]:
        for spelt in self._known:
            for at in positions(text, spelt):
                yield at, at + len(spelt)


def masked(text: str, spans: Sequence[Span]) -> str:
    """Return the text with each span replaced by `[REDACTED]`."""
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        pieces += (text[done:start], MASK)
        done = end
    return "".join((*pieces, text[done:]))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Sort the spans, and merge those that overlap."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start < whole[-1][1]:
            whole[-1] = (whole[-1][0], max(end, whole[-1][1]))
        else:
            whole.append((start, end))
    return whole


def _formats(text: str, words: Sequence[Span]) -> Iterator[Span]:
    if words:
        runs = [text[start:end] for start, end in words]
        for shapes, together in (
            (IN_RUNS, " ".join(runs)),
            (BEFORE_RUNS, " ".join(text[max(0, start - REACH) : end] for start, end in words)),
        ):
            for shape in shapes:
                if shape.literal in together:
                    yield from _shaped(shape, text)
        yield from discord_tokens(text, runs)
    for shape in ANYWHERE:
        if shape.literal in text:
            yield from _shaped(shape, text)


def _shaped(shape: Shape, text: str) -> Iterator[Span]:
    pattern = compiled(shape.pattern)
    for at in positions(text, shape.literal):
        found = pattern.match(text, max(0, at - shape.before))
        if found is not None and not DUMMY.search(text, *found.span()):
            yield found.span("secret" if "secret" in pattern.groupindex else 0)


def _places(text: str) -> Iterator[Span]:
    # The lower-case text must have the same length as the original text. Therefore, first replace the only letter whose
    # lower-case form has two characters.
    folded = text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "i").lower()
    yield from assigned(text, folded)
    yield from authorization(text, folded)
    yield from userinfo(text)
    if "-----" in text:
        yield from private_keys(text)
    yield from headers(text, folded)
    yield from options(text)
    yield from pgpass(text)
    yield from kubernetes_secrets(text, folded)


LINE_LIMIT: Final = 16_384
"""Maximum number of characters to hold back from an incomplete line."""

RESERVE: Final = 8_192
"""Number of characters that are held back at the end of a longer line. Every secret format can be recognized from fewer
characters.
"""

LINES: Final = "\n\r"
WORDS: Final = " \t\n\r"

BEGINNING: Final = 300
"""Number of characters before the cut that are searched for an open quote."""

_BEGUN: Final = re.compile(r"(?:[:=(,]|=>)[ \t]{0,4}\\{0,3}[\"'`][^\"'`\r\n]{0,200}\Z|-----[A-Z0-9 ]{0,60}\Z")
"""Matches an open quote after which a value has begun, and an incomplete first line of a private key."""


_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))

_DRAWN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?![A-Z]?[a-z]{1,40}(?![A-Za-z0-9]))"
    r"(?:[A-Za-z0-9]{12,}|(?=[A-Za-z]{0,5}\d)(?=\d{0,5}[A-Za-z])[A-Za-z0-9]{6,})"
)
"""Matches what looks drawn at random rather than written: no word, no number and no short name."""


def _edge(literal: str) -> str:
    """Return the pattern of the edge before a literal that begins like a word. Others, such as `:AA`, need none."""
    return "(?<![A-Za-z0-9_])" if literal[0].isalnum() else ""


_LITERALS: Final = tuple(shape.literal for shape in (*IN_RUNS, *BEFORE_RUNS, *ANYWHERE) if shape.literal != "|")
_BEGINS: Final = re.compile(
    "|".join(
        re.escape(literal)
        if not literal[-1].isalnum()
        else rf"{_edge(literal)}{re.escape(literal)}(?=[a-z]*[A-Z0-9]|[_-])"
        for literal in sorted(_LITERALS, key=len, reverse=True)
    )
)
"""Matches the start of a secret format. A format that begins like a word must go on unlike one."""

_ENDINGS: Final = (" ", *(f"k7Rq2Xv9Zw4Tb8Nd{end}" for end in ('@h"', "@h'", "@h`")))
"""Possible continuations of a secret. If text is only safe without them, it may be the start of a secret."""


class StreamingMask:
    """Redacts the chunks of one stream, even if a secret is split between chunks. Not thread-safe.

    Complete lines are emitted immediately. For a reader who follows a text while it is written, complete words are
    emitted instead. Incomplete lines or words, incomplete private keys, and text that may be the start of a secret are
    held back. If an incomplete line is too long, all of it is emitted except for the last part, which may contain the
    start of a secret. The amount of text that is held back is therefore limited. Call `flush` at the end of the stream
    to receive the rest.
    """

    def __init__(
        self, mask: SecretMask, *, ends: str = LINES, line_limit: int = LINE_LIMIT, reserve: int = RESERVE
    ) -> None:
        """Create a mask that emits text up to the last character that is in `ends`."""
        self._mask = mask
        self._ends = ends
        self._line_limit = line_limit
        self._reserve = reserve
        self._held = ""
        self._passed = 0
        """Number of characters at the start of the buffer that have already been emitted. They are kept because the
        patterns also examine the text before a match.
        """

    def feed(self, piece: str) -> str:
        """Add a chunk and return the text that can be emitted now."""
        self._held += piece
        if not any(end in piece for end in self._ends) and len(self._held) - self._passed <= self._line_limit:
            return ""
        cut = self._cut()
        return self._pass(cut) if cut > self._passed else ""

    def pause(self) -> str:
        """Return the rest of the text so far, because something else follows before the next chunk. What may be the
        start of a secret is replaced by `[REDACTED]`, and so is the rest of that secret in later chunks.
        """
        if self._passed == len(self._held):
            return ""
        cut = self._cut()
        rest = len(self._held) - cut
        shown = self._pass(cut) if cut > self._passed else ""
        start = min(len(self._held) - rest, self._passed)
        begun = max(start, self._begun(start))
        new, masks = self._held[self._passed : begun], max(begun, self._passed) < len(self._held)
        mark = "." if masks and self._held.endswith(".") else ""  # of a sentence, mostly
        self._passed = len(self._held)
        self._forget(self._passed - LONGEST_KEY - self._line_limit)
        return shown + new + MASK * masks + mark

    def flush(self) -> str:
        """Return the rest at the end of the stream. The mask can be used again."""
        return self._pass(len(self._held))

    def _cut(self) -> int:
        """Return the end of the part that can be emitted: complete lines or words, and complete private keys."""
        cut = max(self._held.rfind(end) for end in self._ends) + 1
        if len(self._held) - max(cut, self._passed) > self._line_limit:
            cut = len(self._held) - self._reserve
        if (begun := _BEGUN.search(self._held, max(0, cut - BEGINNING), cut)) is not None:
            cut = begun.start()
        if (disguised := self._mask.unfinished(self._held[:cut])) is not None:
            cut = min(cut, disguised)
        cut = self._before(start_of_lines(self._held, cut), cut)
        key = open_key(self._held)
        return cut if key is None else self._before(key, cut)

    def _begun(self, start: int) -> int:
        """Return where a secret may begin after `start` that isn't complete, or the end of the text."""
        end = len(self._held)
        word = max(start, len(self._held.rstrip(_ASCII)))
        drawn = _DRAWN.search(self._held, word)
        if drawn is not None and drawn.start() <= self._passed:
            return drawn.start()  # which saves the searches
        places = [end] if drawn is None else [drawn.start()]
        begins = _BEGINS.finditer(self._held, max(0, word - 8))
        places += [found.start() for found in begins if found.end() > word]
        if (known := self._mask.begun(self._held)) is not None:
            places.append(known)
        if (key := open_key(self._held)) is not None:
            places.append(key)
        line = max(self._held.rfind(end) for end in LINES) + 1
        if (lines := start_of_lines(self._held, line)) < line:
            places.append(lines)
        if min(places) <= self._passed:
            return min(places)
        first = max(0, min(max(start, end - BEGINNING), word) - CONTEXT)  # a long value's name counts, too
        for ending in _ENDINGS:
            spans = self._mask.spans(self._held[first:] + ending)
            places += [first + at for at, until in spans if first + until > start]
        return min(places)

    def _before(self, beginning: int, cut: int) -> int:
        """Return a cut position before text that may continue in the next chunk, unless the limit is exceeded."""
        return min(cut, beginning) if len(self._held) - beginning <= LONGEST_KEY + self._line_limit else cut

    def _pass(self, cut: int) -> str:
        spans = self._mask.spans(self._held)
        cut = self._before(next((start for start, end in spans if start < cut < end), cut), cut)
        begun, cut = self._passed, max(cut, self._passed)
        # The start of a secret may already have been emitted. The rest is redacted all the same.
        inside = [
            (max(start, begun) - begun, min(end, cut) - begun) for start, end in spans if start < cut and end > begun
        ]
        shown = masked(self._held[begun:cut], inside)
        self._passed = cut
        self._forget(cut - CONTEXT)
        return self._mask.redact(shown) if inside else shown

    def _forget(self, before: int) -> None:
        """Drop what was emitted too long ago to belong to a secret that is yet to come."""
        if before > 0:
            self._held, self._passed = self._held[before:], self._passed - before
