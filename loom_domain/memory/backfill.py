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


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepRequest:
    """Keep memory."""

    since: datetime | None = None
    """Memory has everything that happened until then."""
    rounds: int = 200
    """Of one execution; then it goes on in a fresh history."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepDone:
    """What one round did; the next one begins where it ended."""

    until: datetime | None = None
    """Memory has everything that happened until then."""
    caught_up: int = 0
    promoted: int = 0
    expired: int = 0
    embedded: int = 0
    failed: tuple[str, ...] = ()
    """The steps that did not come to their end; a later round takes them up."""
