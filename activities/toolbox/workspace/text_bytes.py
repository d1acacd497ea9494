"""Texts in files and names of files, as bytes. Every byte of a text survives reading and writing.

A byte that isn't UTF-8 is half a surrogate pair in the text, as in the names that `os.listdir` returns. People and
models see it as `\\xNN`. This module imports only the standard library, because the search process imports no other
Loom modules.
"""

import codecs
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8", "surrogateescape"),
    (codecs.BOM_UTF32_LE, "utf-32-le", "surrogatepass"),
    (codecs.BOM_UTF32_BE, "utf-32-be", "surrogatepass"),
    (codecs.BOM_UTF16_LE, "utf-16-le", "surrogatepass"),
    (codecs.BOM_UTF16_BE, "utf-16-be", "surrogatepass"),
)
"""The byte order marks, with the encoding and the way in which what isn't valid in it is kept. UTF-32 comes before
UTF-16, whose mark is the beginning of its mark.
"""
_HALF: Final = re.compile("[\ud800-\udfff]")
_SPELLED_BYTES: Final = re.compile("(?:\\\\x[89a-fA-F][0-9a-fA-F]|[\udc80-\udcff])+")
LINE_END: Final = re.compile("\r\n|\n|\r")


class Form(NamedTuple):
    """How a text is stored in its file."""

    mark: bytes = b""
    """The byte order mark at the start of the file."""
    encoding: str = "utf-8"
    errors: str = "surrogateescape"

    @property
    def description(self) -> str:
        """What is special about the form, or an empty string."""
        if not self.mark:
            return ""
        return "a byte order mark" if self.encoding == "utf-8" else f"the encoding {self.encoding.upper()}"


PLAIN: Final = Form()


def form_of(data: bytes) -> Form:
    """Return the form of a file that starts with these bytes."""
    return next((Form(*each) for each in _MARKS if data.startswith(each[0])), PLAIN)


def decoded(data: bytes, form: Form) -> str:
    """Return the text without the byte order mark. Raises ValueError if the bytes have another encoding than UTF-8
    says, and only for UTF-16 and UTF-32.
    """
    return data[len(form.mark) :].decode(form.encoding, form.errors)


def encoded(text: str, form: Form) -> bytes:
    """Return the bytes of the file."""
    return form.mark + text.encode(form.encoding, form.errors)


def is_binary(start: bytes) -> bool:
    """Whether a file that starts with these bytes contains no text."""
    form = form_of(start)
    return b"\0" in start and form.encoding == "utf-8"


def has_other_bytes(text: str) -> bool:
    """Whether the text contains bytes that aren't UTF-8."""
    return _HALF.search(text) is not None


def readable(text: str) -> str:
    r"""Return the text with each byte that isn't UTF-8 as `\xNN`, so that every store and model accepts it."""
    return _HALF.sub(_spelled, text)


def name_from(text: str) -> str:
    r"""Return the name of a file with each `\xNN` as the byte that it stands for. ASCII characters are never meant.

    Bytes that are UTF-8 become characters, as in the names that `os.listdir` returns, so that a file has one name only.
    """
    return _SPELLED_BYTES.sub(lambda spelled: _decoded_name(spelled[0]), text)


def with_characters(path: str) -> str:
    r"""Return the path with characters instead of each series of `\xNN` that contains UTF-8. Permission rules are
    matched against characters, so a path must not spell them in another way.
    """
    return _SPELLED_BYTES.sub(
        lambda spelled: spelled[0] if _HALF.sub("", name := _decoded_name(spelled[0])) == "" else readable(name), path
    )


def plain_lines(text: str) -> str:
    """Return the text with a newline at the end of each line."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def one_line_end(text: str) -> str | None:
    """Return the line end if all lines of the text have the same. Return an empty string if there is none, and None if
    they differ.
    """
    windows = text.count("\r\n")
    kinds = {"\r\n": windows, "\n": text.count("\n") - windows, "\r": text.count("\r") - windows}
    found = [kind for kind, number in kinds.items() if number]
    return None if len(found) > 1 else "".join(found)


def line_numbers(text: str, places: Iterable[int]) -> Iterator[int]:
    """Yield the number of the line at each of these places, which ascend."""
    number, seen = 1, 0
    for place in places:
        number += plain_lines(text[seen:place]).count("\n")
        seen = place
        yield number


def line_end_after(text: str, at: int) -> str:
    """Return the line end of the line at this place. The last line has that of the line before."""
    if found := LINE_END.search(text, at):
        return found[0]
    before = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at))
    if before < 0:
        return "\n"
    return "\r\n" if text[max(before - 1, 0) : before + 1] == "\r\n" else text[before]


class Places:
    """The places of a text, counted as if a newline ended each line."""

    def __init__(self, text: str) -> None:
        starts = (match.start() for match in re.finditer("\r\n", text))
        self._windows: Sequence[int] = [start - number for number, start in enumerate(starts)]

    def within(self, plain: int) -> int:
        """Return the place in the text."""
        return plain + bisect_left(self._windows, plain)


def _decoded_name(spelled: str) -> str:
    pieces = re.findall(r"\\x(..)|(.)", spelled)
    return bytes(int(code, 16) if code else ord(half) - 0xDC00 for code, half in pieces).decode(
        "utf-8", "surrogateescape"
    )


def _spelled(half: "re.Match[str]") -> str:
    code = ord(half[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else "\N{REPLACEMENT CHARACTER}"
