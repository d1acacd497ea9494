"""Change a text and keep every byte outside the change: line ends, byte order mark and encoding.

Models read and write newlines. An old text therefore matches whatever the line ends of the file are, and a new text
gets those of the lines around it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loom.activities.toolbox.workspace.text_bytes import (
    LINE_END,
    Form,
    Places,
    decoded,
    encoded,
    form_of,
    has_other_bytes,
    line_end_after,
    one_line_end,
    plain_lines,
)

_MARK: Final = "\ufeff"
_PROGRESS: Final = re.compile(r"\d ?%|\d ?/ ?\d|\x1b\[")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileText:
    """The text of a file, and how it is stored."""

    text: str
    """The text without the byte order mark, with its own line ends."""
    form: Form

    def bytes_of(self, text: str) -> bytes:
        """Return the bytes of the file with another text."""
        return encoded(text, self.form)

    def with_own_line_ends(self, content: str) -> str:
        """Return a new content of the file with its line ends, unless the content has its own, or the file has several
        kinds.
        """
        end = one_line_end(self.text)
        content = content.removeprefix(_MARK) if self.form.mark else content
        if not end or "\r" in content or (end == "\r" and not self._has_lines_with_carriage_returns):
            return content
        return content.replace("\n", end)

    @property
    def _has_lines_with_carriage_returns(self) -> bool:
        """Whether carriage returns end lines, and don't return to the beginning of a line that shows progress."""
        has_several = self.text.count("\r") > 1 and self.text.endswith("\r")
        return has_several and _PROGRESS.search(self.text) is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A text to replace, and the text that replaces it."""

    old: str
    new: str

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of each occurrence of the old text."""
        places, old = Places(text), plain_lines(self.old)
        found = [(places.within(at), places.within(end)) for at, end in _found(plain_lines(text), old)]
        exact = [(start, end) for start, end in found if text[start:end] == self.old]
        return exact if self._is_about_line_ends or (exact and "\r" in self.old) else found

    def apply(self, text: str, places: list[tuple[int, int]]) -> str:
        """Return the text with the old text replaced at these places. In it, the lines that the edit doesn't change
        keep their line ends. A carriage return and a newline between which the edit removes all text become one line
        end, because every byte outside the change stays.
        """
        if self._is_about_line_ends:
            return _replaced(text, [(start, end, self.new) for start, end in places])
        old, new = plain_lines(self.old), self._new_for(text)
        if (line_end := one_line_end(text)) is not None:
            return text.replace(old.replace("\n", line_end), new.replace("\n", line_end or "\n"))
        first = _common(old, new)
        last = _common(old[first:][::-1], new[first:][::-1])
        lines = new[first : len(new) - last].split("\n")
        changes = []
        for start, end in places:
            within = Places(text[start:end]).within
            begin, stop = start + within(first), start + within(len(old) - last)
            changes.append((begin, stop, _with_line_ends(lines, text, begin, stop)))
        return _replaced(text, changes)

    def is_there_with_other_line_ends(self, text: str) -> bool:
        """Whether the old text differs from a part of the text only in its line ends."""
        return plain_lines(self.old) in plain_lines(text)

    @property
    def _is_about_line_ends(self) -> bool:
        return plain_lines(self.old) == plain_lines(self.new)

    def _new_for(self, text: str) -> str:
        """Return the new text with newlines. In a file with newlines, a lone carriage return ends no line."""
        new = self.new.replace("\r\n", "\n")
        return new if "\n" in text else new.replace("\r", "\n")


def _replaced(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    done, pieces = 0, []
    for begin, stop, new in changes:
        pieces += [text[done:begin], new]
        done = stop
    return "".join((*pieces, text[done:]))


def _with_line_ends(lines: Sequence[str], text: str, begin: int, stop: int) -> str:
    """Join the lines that replace a part of the text, with its line ends, or the next one if their number differs. A
    carriage return and a newline must not become one line end.
    """
    own, number = LINE_END.findall(text, begin, stop), len(lines) - 1
    before, after = text[max(begin - 1, 0) : begin], text[stop : stop + 1]
    wanted = "\n".join((before.replace("\r", "\n") + lines[0], *lines[1:])) + after.replace("\r", "\n")
    joined = "".join(lines)
    for ends in (own, [line_end_after(text, begin)] * number, ["\r\n"] * number):
        if len(ends) == number:
            joined = "".join(line + end for line, end in zip(lines, [*ends, ""], strict=True))
            if plain_lines(before + joined + after) == plain_lines(wanted):
                break
    return joined


def file_text(data: bytes) -> FileText:
    """Return the text of a file. Raises ValueError if it isn't valid in the encoding that its byte order mark names."""
    form = form_of(data)
    return FileText(text=decoded(data, form), form=form)


def edit_for(file: FileText, old: str, new: str) -> Edit:
    """Return the edit of the file. Models may send the byte order mark, which isn't a part of the text."""
    if file.form.mark and old.startswith(_MARK):
        old, new = old.removeprefix(_MARK), new.removeprefix(_MARK)
    return Edit(old=old, new=new)


def would_mix_encodings(file: FileText, new: str) -> bool:
    """Whether the new text would add UTF-8 to a file in an unknown encoding."""
    return has_other_bytes(file.text) and not new.isascii()


def _common(one: str, other: str) -> int:
    """Return the number of characters that both texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _found(text: str, old: str) -> Iterator[tuple[int, int]]:
    at = text.find(old) if old else -1
    while at >= 0:
        yield at, at + len(old)
        at = text.find(old, at + len(old))
