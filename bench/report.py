"""Format figures as Markdown."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any


def table(header: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def section(title: str, text: str, figures: str) -> str:
    """Return a section of Markdown: its heading, a paragraph and a table."""
    paragraph = fill(text, 120, break_long_words=False, break_on_hyphens=False)
    return f"## {title}\n\n{paragraph}\n\n{figures}"


def machine() -> str:
    """Return a description of the machine and the server."""
    return (
        f"Machine: {os.cpu_count()} cores, {platform.system()} {platform.machine()},"
        f" Python {platform.python_version()}. Temporal server: the one that `loom up` starts, tuned, with SQLite."
    )


def spread(values: Sequence[float], unit: str, digits: int = 1) -> str:
    """Return the median, with the minimum and the maximum."""
    return f"{median(values):.{digits}f} {unit} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def ratio_of(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of pairs."""
    return median(one / other for one, other in zip(mine, theirs, strict=True))


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median of the ratios of pairs, as text."""
    return f"{ratio_of(mine, theirs):.2f}"


def percentile(values: list[float], share: float) -> float:
    """Return the value that is greater than the given share of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def put(page: Path, marks: tuple[str, str], section: str) -> None:
    """Replace the text between two marks on a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"{page} does not contain {marks[0]} and {marks[1]}")
    page.write_text(f"{before}{marks[0]}\n{section}\n{marks[1]}{after}", encoding="utf-8")
