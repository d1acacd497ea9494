"""Render what a call would change in a file."""

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from loom.cli.output import counted, visible

MOST_LINES: Final = 40
"""Maximum number of displayed lines of a diff."""

_NAMES: Final = ("---", "+++")
"""The lines with which a diff begins."""
_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


def change_lines(change: str, most: int | None = MOST_LINES) -> Iterator[Text]:
    """Render a unified diff, and how many lines of it are left out."""
    if not change:
        yield Text("the file would not change", style="dim")
        return
    lines = change.split("\n")
    for number, line in enumerate(lines[:most]):
        style = "bold" if number < len(_NAMES) else _STYLES.get(line[:1], "")
        yield Text(visible(line), style=style)
    if most is not None and len(lines) > most:
        yield Text(f"… {counted(len(lines) - most, 'more line')} of the diff", style="red")
