"""What the runs of the benchmarks do: a task names its turns and calls, and the models act on it.

The peers use it too, so it doesn't import Loom.
"""

import re
from dataclasses import dataclass
from typing import Final

QUICK: Final = "read_file"
"""The tool of most runs. It is a quick tool."""
OTHER: Final = "look_up"
"""A tool that reads the same file, but isn't declared quick."""
ASKED: Final = re.compile(r"turns=(\d+) calls=(\d+)(?: tool=(\w+))?(?: file=(\S+))?(?: said=(\d+))?")


@dataclass(frozen=True)
class Shape:
    """The turns of a run. A task contains it as text."""

    turns: int
    calls: int = 1
    """Number of tool calls in each turn."""
    tool: str = QUICK
    file: str = "data.txt"
    """The file that the tool reads."""
    said: int = 0
    """Number of characters that the model writes in each turn."""

    def __str__(self) -> str:
        """Return the text from which `of` reads the shape. Run IDs contain it, so it is short."""
        usual = Shape(self.turns)
        rest = {name: getattr(self, name) for name in ("tool", "file", "said")}
        told = "".join(f" {name}={value}" for name, value in rest.items() if value != getattr(usual, name))
        return f"turns={self.turns} calls={self.calls}{told}"

    @classmethod
    def of(cls, task: str) -> "Shape":
        """Read the shape from a task. `turns=N calls=M` is enough."""
        asked = ASKED.search(task)
        assert asked is not None, task
        turns, calls, tool, file, said = asked.groups()
        return cls(int(turns), int(calls), tool or cls.tool, file or cls.file, int(said or cls.said))

    def calls_in(self, turn: int) -> int:
        """Return the number of calls in this turn, where the first turn is 0."""
        return self.calls if turn < self.turns else 0

    def text_in(self, turn: int) -> str:
        """Return what the model writes in this turn, which is different in each turn."""
        words = f"Step {turn} of the plan. "
        return (words * (self.said // len(words) + 1))[: self.said]
