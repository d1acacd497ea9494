"""Taking secrets out of text that comes in pieces, wherever the pieces are cut.

Whole lines pass; an unfinished line waits for its end, and so does a private key. A line that is too long to wait for
passes but for its last part, in which a secret may have begun. So what is kept back is bounded, and a caller that must
show everything calls `flush` at the end.
"""

import re
from typing import Final

from loom.activities.adapters.redaction.locations import CONTEXT
from loom.activities.adapters.redaction.mask import SecretMask, masked
from loom.activities.adapters.redaction.private_keys import LONGEST_KEY, open_key, start_of_lines

LINE_LIMIT: Final = 16_384
"""Characters of an unfinished line that wait for its end."""

RESERVE: Final = 8_192
"""Characters at the end of a longer line that wait: every format is known by fewer."""

_LINE_END: Final = re.compile(r"[\n\r]")


class StreamingMask:
    """One stream: pieces in, text without secrets out; not for several threads at once."""

    def __init__(self, mask: SecretMask, *, line_limit: int = LINE_LIMIT, reserve: int = RESERVE) -> None:
        self._mask = mask
        self._line_limit = line_limit
        self._reserve = reserve
        self._held = ""
        self._passed = 0
        """Characters at the beginning of what is held that have been given out; patterns look back at them."""

    def feed(self, piece: str) -> str:
        """Take in the next piece; returns what can be shown by now."""
        self._held += piece
        if _LINE_END.search(piece) is None and len(self._held) - self._passed <= self._line_limit:
            return ""
        cut = self._cut()
        return self._pass(cut) if cut > self._passed else ""

    def flush(self) -> str:
        """What is left, at the end of the stream; the mask can be used again."""
        return self._pass(len(self._held))

    def _cut(self) -> int:
        """Up to where lines are whole, and no key is open."""
        cut = max(self._held.rfind("\n"), self._held.rfind("\r")) + 1
        if len(self._held) - max(cut, self._passed) > self._line_limit:
            cut = len(self._held) - self._reserve
        cut = self._before(start_of_lines(self._held, cut), cut)
        key = open_key(self._held)
        return cut if key is None else self._before(key, cut)

    def _before(self, beginning: int, cut: int) -> int:
        """A cut in front of what may go on behind it, unless that has been waited for too long."""
        return min(cut, beginning) if len(self._held) - beginning <= LONGEST_KEY + self._line_limit else cut

    def _pass(self, cut: int) -> str:
        spans = self._mask.spans(self._held)
        cut = self._before(next((start for start, end in spans if start < cut < end), cut), cut)
        begun, cut = self._passed, max(cut, self._passed)
        inside = [(start - begun, min(end, cut) - begun) for start, end in spans if begun <= start < cut]
        shown = masked(self._held[begun:cut], inside)
        keep = max(0, cut - CONTEXT)
        self._held, self._passed = self._held[keep:], cut - keep
        return self._mask.redact(shown) if inside else shown
