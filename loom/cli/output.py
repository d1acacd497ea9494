"""Print command output: one JSON value for programs, or text without control sequences for people.

Text from models, tools and other people passes through `plain` or `visible`. `plain` removes colors and keeps the text
readable. `visible` keeps all characters and escapes the unusual ones, so that a person can see exactly what a call
contains before approving it.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

WIDE: Final = 160
"""Width of tables in columns when standard output isn't a terminal."""

DUMB: Final = ("dumb", "unknown")
"""Values of TERM for terminals that only print lines."""

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]"
)


class SafeConsole(Console):
    """A console that replaces control characters in whatever it prints, except line ends, tabs and its own styling.

    Commands make texts readable with `plain` or `visible`. This is for the text that somebody has forgotten.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See base class."""
        for segment in super().render(renderable, options):
            if segment.control is None and _CONTROL.search(segment.text):
                yield Segment(_CONTROL.sub("\ufffd", segment.text), segment.style)
            else:
                yield segment


def print_json(value: object) -> None:
    """Print a value as one line of JSON. Control characters are escaped, and invalid characters become `?`."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_jsonable)
    text = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    sys.stdout.write(text.encode("utf-8", "replace").decode() + "\n")
    sys.stdout.flush()


def print_notice(text: str) -> None:
    """Print a message for people on standard error."""
    sys.stderr.write(plain(text).encode("utf-8", "replace").decode() + "\n")
    sys.stderr.flush()


def console(*, wide: bool = False) -> Console:
    """Return a console on standard output. It doesn't interpret markup in text, and nothing in a text controls it."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    width = WIDE if wide and not sys.stdout.isatty() else None
    # A dumb terminal gets the plain lines of a pipe, because it can't move its cursor.
    is_terminal = False if os.environ.get("TERM") in DUMB else None
    return SafeConsole(markup=False, highlight=False, emoji=False, width=width, force_terminal=is_terminal)


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


def fault_told(run_id: str, fault: Mapping[str, Any]) -> str:
    """Say that a run's workflow task fails, why, and what to do."""
    return (
        f"the run can't go on, because its workflow task fails: {one_line(str(fault['error']), 300)}\n"
        f"run `loom repair {shlex.quote(run_id)}`; the run then handles all requests that it has received"
    )


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
    return f"{minutes // 60}h {minutes % 60:02}m" if minutes < 48 * 60 else f"{round(minutes / 1440)} days"


def age(span: float) -> str:
    """Format a duration in at most four characters."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if span >= size:
            return f"{int(span // size)}{unit}"
    return f"{int(max(span, 0))}s"


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
