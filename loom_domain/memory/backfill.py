"""The input and result of the activity `catch_up`."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class CatchUpRequest:
    """Read runs that have ended since then, and all that have not."""

    since: datetime | None = None
    """The `until` of the previous result; None: everything that the server still has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """Memory has everything that happened until then."""

    until: datetime
    runs: int = 0
    """Number of runs whose history was read."""
    tasks: int = 0
    """Number of tasks that memory did not have."""
    unreadable: tuple[str, ...] = ()
    """Runs whose history this worker cannot decode, at most a hundred."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepRequest:
    """The input of the upkeep workflow."""

    since: datetime | None = None
    """Memory has everything that happened until then."""
    rounds: int = 200
    """Rounds of one execution. Then it continues as new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepDone:
    """The outcome of one round. The next one starts where it ended."""

    until: datetime | None = None
    """Memory has everything that happened until then."""
    caught_up: int = 0
    promoted: int = 0
    expired: int = 0
    embedded: int = 0
    failed: tuple[str, ...] = ()
    """The activities that failed. A later round repeats them."""
