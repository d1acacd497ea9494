"""Redact secrets in text that arrives in chunks, even if a secret is split between chunks.

Complete lines are emitted immediately, or complete words for a reader who follows a text as it is written. Incomplete
ones, incomplete private keys, and text that may be the start of a secret are held back. If an incomplete line is too
long, all of it is emitted except for the last part, which may contain the start of a secret. The amount of text that is
held back is therefore limited. Call `flush` at the end of the stream to receive the rest.
"""

import re
from typing import Final

from loom.activities.adapters.redaction.locations import CONTEXT
from loom.activities.adapters.redaction.mask import SecretMask, masked
from loom.activities.adapters.redaction.private_keys import LONGEST_KEY, open_key, start_of_lines

LINE_LIMIT: Final = 16_384
"""Maximum number of characters to hold back from an incomplete line."""

RESERVE: Final = 8_192
"""Number of characters that are held back at the end of a longer line. Every secret format can be recognized from fewer
characters.
"""

LINES: Final = "\n\r"
WORDS: Final = " \t\n\r"

BEGINNING: Final = 300
"""Number of characters before the cut in which an open quote is searched."""

_BEGUN: Final = re.compile(r"(?:[:=(,]|=>)[ \t]{0,4}\\{0,3}[\"'`][^\"'`\r\n]{0,200}\Z|-----[A-Z0-9 ]{0,60}\Z")
"""Matches an open quote after which a value has begun, and an incomplete first line of a private key."""


class StreamingMask:
    """Redacts the chunks of one stream. Not thread-safe."""

    def __init__(
        self, mask: SecretMask, *, ends: str = LINES, line_limit: int = LINE_LIMIT, reserve: int = RESERVE
    ) -> None:
        """Create a mask that emits text up to the last of the characters `ends`."""
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

    def flush(self) -> str:
        """Return the rest at the end of the stream. The mask can be used again."""
        return self._pass(len(self._held))

    def _cut(self) -> int:
        """Return the end of the part that contains only complete lines and complete private keys."""
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
        keep = max(0, cut - CONTEXT)
        self._held, self._passed = self._held[keep:], cut - keep
        return self._mask.redact(shown) if inside else shown
