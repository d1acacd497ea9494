"""The payloads of the activity `catch_up` and of the workflow `MemoryUpkeep`."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class CatchUpRequest:
    """Read the runs that ended since then and those that are still running."""

    since: datetime | None = None
    """The `until` of the last result; None: all runs that the server still has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """Memory has everything that happened until then."""

    until: datetime
    runs: int = 0
    """Runs whose history was read."""
    tasks: int = 0
    """Tasks that memory had missed."""
    unreadable: tuple[str, ...] = ()
    """Runs whose history this worker cannot decode, at most a hundred."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepRequest:
    """The input of `MemoryUpkeep`."""

    since: datetime | None = None
    """Memory has everything that happened until then."""
    rounds: int = 200
    """Rounds of one execution; then the workflow continues as new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepDone:
    """The result of one round; the next round begins where it ended."""

    until: datetime | None = None
    """Memory has everything that happened until then."""
    caught_up: int = 0
    promoted: int = 0
    expired: int = 0
    embedded: int = 0
    failed: tuple[str, ...] = ()
    """The steps that failed; a later round retries them."""
