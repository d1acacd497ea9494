"""What commands print: one JSON value on standard output for programs, words for people, and nothing that can steer a
terminal.

Text from models, tools and other people passes through `plain` (what a person would read, colours dropped) or
`visible` (nothing dropped, every odd character spelled out: for what somebody is about to approve).
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, Final

from rich.console import Console

WIDE: Final = 160
"""Columns of tables that do not go to a terminal."""

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]"
)

_LINE_ENDS = "\u0085\u2028\u2029"


def print_json(value: object) -> None:
    """One value on one line, also for readers that break lines at Unicode's ends; broken text becomes `?`."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_jsonable)
    for end in _LINE_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    sys.stdout.write(text.encode("utf-8", "replace").decode() + "\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """A line for people on standard error."""
    sys.stderr.write(plain(text).encode("utf-8", "replace").decode() + "\n")
    sys.stderr.flush()


def console(*, wide: bool = False) -> Console:
    """Standard output for people; markup in what is printed means nothing."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    width = WIDE if wide and not sys.stdout.isatty() else None
    return Console(markup=False, highlight=False, emoji=False, width=width)


def plain(text: str) -> str:
    """Text for reading: terminal sequences gone, line ends unified, other control characters spelled out."""
    bare = _SEQUENCE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return _CONTROL.sub(_spelled, bare)


def visible(text: str) -> str:
    """Text for judging: nothing is dropped, and nothing is left that could hide or reorder its neighbours."""
    return _HIDDEN.sub(_spelled, text)


def one_line(text: str, limit: int = 120) -> str:
    """The text on one line of at most `limit` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def money(cost: float | None) -> str:
    """US dollars for people."""
    if cost is None:
        return "cost unknown"
    return f"${cost:.4f}" if 0 < cost < 1 else f"${cost:.2f}"


def tokens(count: int) -> str:
    """A count in four characters or so."""
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.2f}M"


def seconds(span: float) -> str:
    """A duration for people."""
    if span < 0.1:
        return f"{max(span, 0) * 1000:.0f} ms"
    if span < 60:
        return f"{span:.1f} s"
    minutes = int(span) // 60
    if minutes < 60:
        return f"{minutes}m {int(span) % 60:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m" if minutes < 48 * 60 else f"{minutes // 1440} days"


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 turn`, `2 turns`; `plural` is that of a noun that takes more than an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _jsonable(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
