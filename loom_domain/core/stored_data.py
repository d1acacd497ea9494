"""The data that runs store outside their histories."""

import re
from dataclasses import dataclass
from typing import Final

_CHILDREN: Final = re.compile(r"(/d\d+(-\d+(-[0-9a-f]+)?)?)+\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTree:
    """A tree of runs that have stored data."""

    root: str
    """The id of the root, or the longest id that may be its id."""
    runs: tuple[str, ...]
    """The runs that have stored data."""
    parents: tuple[str, ...] = ()
    """Workflows outside the tree that have started one of its runs. Their histories may refer to its payloads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """The numbers of entries that were deleted because their runs have left the server."""

    artifacts: int = 0
    effects: int = 0
    payloads: int = 0

    def __add__(self, other: "Collected") -> "Collected":
        return Collected(
            artifacts=self.artifacts + other.artifacts,
            effects=self.effects + other.effects,
            payloads=self.payloads + other.payloads,
        )


def tree_of(run_id: str) -> str:
    """Return the id of the run's root. A child's id consists of its parent's id, `/`, and a generated name."""
    return _CHILDREN.sub("", run_id) or run_id
