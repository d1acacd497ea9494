"""What the activity `catch_up` is asked and answers."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class CatchUpRequest:
    """Look at runs that ended since then, and at all that have not."""

    since: datetime | None = None
    """The `until` of the last answer; None: everything that the server still has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaughtUp:
    """Memory has everything that happened until then."""

    until: datetime
    runs: int = 0
    """Runs whose history was read."""
    tasks: int = 0
    """Tasks that memory did not have."""
    unreadable: tuple[str, ...] = ()
    """Runs whose history this worker cannot decode; the first hundred."""
