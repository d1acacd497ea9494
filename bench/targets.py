"""What the measured figures must be, so that a turn costs what durability costs, and nothing more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bench.report import section, table


@dataclass(frozen=True, kw_only=True)
class Target:
    """A figure with its limit. Exactly one of the limits is set."""

    what: str
    measured: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps its limit. Figures are compared as they are printed."""
        measured = float(_number(self.measured))
        return (self.at_most is None or measured <= self.at_most) and (
            self.at_least is None or measured >= self.at_least
        )

    def row(self) -> list[str]:
        """Return the row of the table."""
        limit = f"≤ {_number(self.at_most)}" if self.at_most is not None else f"≥ {_number(self.at_least or 0)}"
        return [
            self.what,
            f"{_number(self.measured)}{self.unit}",
            f"{limit}{self.unit}",
            "yes" if self.is_met else "no",
        ]


class Section(NamedTuple):
    """A section of the page of figures, and the targets that its figures are compared with."""

    text: str
    targets: tuple[Target, ...] = ()
    images: Mapping[str, str] = {}
    """The files in docs/images that the text shows, and their content."""


def target_table(targets: Iterable[Target]) -> str:
    """Return the section that says which targets are met."""
    text = (
        "Ratios are medians of pairs in one run. *Floor* is a hand-written loop on Temporal without any features"
        " (`bench/floor.py`), with the same model in the worker's process. The sections below have the ranges, and what"
        " each comparison hides. [architecture.md](architecture.md#the-cost-of-a-turn) says why a target is missed."
    )
    return section("Targets", text, table(["figure", "measured", "target", "met"], [each.row() for each in targets]))


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 and value != int(value) else f"{value:.0f}"
