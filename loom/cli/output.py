"""Print command output: one JSON value for programs, or text without control sequences for people.

Text from models, tools and other people passes through `plain` or `visible`. `plain` removes colors and keeps the text
readable. `visible` keeps all characters and escapes the unusual ones, so that a person can see exactly what a call
contains before approving it.
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
"""Width of tables in columns when standard output isn't a terminal."""

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]"
)

_LINE_ENDS = "\u0085\u2028\u2029"


def print_json(value: object) -> None:
    """Print a value as one line of JSON. Unicode line separators are escaped, and invalid characters become `?`."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_jsonable)
    for end in _LINE_ENDS:
        text = text.replace(end, f"\\u{ord(end):04x}")
    sys.stdout.write(text.encode("utf-8", "replace").decode() + "\n")
    sys.stdout.flush()


def print_notice(text: str) -> None:
    """Print a message for people on standard error."""
    sys.stderr.write(plain(text).encode("utf-8", "replace").decode() + "\n")
    sys.stderr.flush()


def console(*, wide: bool = False) -> Console:
    """Return a console on standard output that doesn't interpret markup in text."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    width = WIDE if wide and not sys.stdout.isatty() else None
    return Console(markup=False, highlight=False, emoji=False, width=width)


def plain(text: str) -> str:
    """Remove terminal sequences, normalize line endings and escape other control characters."""
    bare = _SEQUENCE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return _CONTROL.sub(_escaped, bare)


def visible(text: str) -> str:
    """Escape every character that could hide or reorder other text, without removing any characters."""
    return _HIDDEN.sub(_escaped, text)


def one_line(text: str, limit: int = 120) -> str:
    """Join the text into one line of at most `limit` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def money(cost: float | None) -> str:
    """Format a cost in US dollars for people."""
    if cost is None:
        return "cost unknown"
    return f"${cost:.4f}" if 0 < cost < 1 else f"${cost:.2f}"


def tokens(count: int) -> str:
    """Format a token count in about four characters."""
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.2f}M"


def seconds(span: float) -> str:
    """Format a duration for people."""
    if span < 0.1:
        return f"{max(span, 0) * 1000:.0f} ms"
    if span < 60:
        return f"{span:.1f} s"
    minutes = int(span) // 60
    if minutes < 60:
        return f"{minutes}m {int(span) % 60:02}s"
    return f"{minutes // 60}h {minutes % 60:02}m" if minutes < 48 * 60 else f"{minutes // 1440} days"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun, such as `1 turn` or `2 turns`. Pass `plural` for irregular plurals."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def _escaped(match: re.Match[str]) -> str:
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
