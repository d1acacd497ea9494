"""Read from a task how many turns and calls its run has. The peers use it too, so it doesn't import Loom."""

import re
from typing import Final

ASKED: Final = re.compile(r"turns=(\d+) calls=(\d+)")


def calls_in(task: str, turn: int) -> int:
    """Return the number of calls in this turn of `turns=N calls=M`, where the first turn is 0."""
    asked = ASKED.search(task)
    assert asked is not None, task
    return int(asked[2]) if turn < int(asked[1]) else 0
