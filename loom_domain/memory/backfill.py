"""The inputs and the results of the activities that keep memory complete and within its limits."""

from dataclasses import dataclass, field
from datetime import datetime

from loom.domain.core.stored_data import Collected


@dataclass(frozen=True, kw_only=True, slots=True)
class CatchUpRequest:
    """A request to read the history of all runs that ended after a given time or haven't ended yet."""

    since: datetime | None = None
    """The `until` value of the previous result. If None, all runs that the server still retains are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """The activity's result. Memory contains all tasks from before `until`."""

    until: datetime
    runs: int = 0
    """The number of runs whose history was read."""
    tasks: int = 0
    """The number of tasks that were missing from memory."""
    unreadable: tuple[str, ...] = ()
    """Up to 100 runs whose history this worker can't decode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMemories:
    """The result of the `keep_memories` activity: the number of memories that each step has changed."""

    promoted: int = 0
    expired: int = 0
    embedded: int = 0
    has_more: bool = False
    """Whether a step has stopped at its maximum, so that memories probably remain."""
    failed: tuple[str, ...] = ()
    """The steps that failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepRequest:
    """The upkeep workflow's input."""

    since: datetime | None = None
    """The time up to which memory is complete."""
    rounds: int = 200
    """The number of rounds in one execution. After that, the workflow continues as new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepDone:
    """The result of one round. The next round starts where this round ended."""

    until: datetime | None = None
    """The time up to which memory is complete."""
    caught_up: int = 0
    promoted: int = 0
    expired: int = 0
    embedded: int = 0
    collected: Collected = field(default_factory=Collected)
    """The stored data that was deleted because its runs have left the server."""
    failed: tuple[str, ...] = ()
    """The steps that failed. A later round repeats them."""
