"""Headings and the text below them, in English and Chinese: what a search by a heading has to find.

`passages.jsonl` was collected once from public packages, see README.md; `collect` is how.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

FILE: Final = Path(__file__).with_name("passages.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A text without the heading that its author gave it."""

    language: Literal["en", "zh"]
    source: str
    """The package that ships it, with its version, and where in it."""
    heading: str
    """What is asked; this passage is the one right answer."""
    body: str


def passages() -> tuple[Passage, ...]:
    """All of them, in the order of the file."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return tuple(Passage(**json.loads(line)) for line in lines)
