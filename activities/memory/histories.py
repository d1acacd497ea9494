"""The histories of runs, as memory and reports read them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from loom.domain.history.facts import ActivityAttempt, Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A run that may have tasks that aren't in memory."""

    run_id: str
    events: int
    """Number of events in the run's last execution. If this number hasn't increased since the last pass, there are no
    new tasks.
    """


class UnreadableHistory(Exception):
    """Raised if a history no longer exists or contains data that this worker can't decode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution:
    """The facts from the history of one execution."""

    facts: tuple[Fact, ...]
    earlier: tuple[Fact, ...] = ()
    """The facts of the execution before it, to which these facts may refer."""
    began: datetime | None = None
    """When it started, by the server's clock."""
    unfinished: Mapping[str, ActivityAttempt] = field(default_factory=dict)
    """The activities that haven't ended, by activity ID. `began` is when they were scheduled."""


class Histories(Protocol):
    """Reads run histories from the Temporal server."""

    def moved(self, since: datetime | None, until: datetime) -> AsyncIterator[Moved]:
        """Yield the runs that ended in this period, and all runs that haven't ended."""
        ...

    def executions(self, run_id: str, since: datetime | None = None) -> AsyncIterator[Execution]:
        """Yield the run's executions, latest first. With `since`, executions that ended before that time are omitted.
        Raises UnreadableHistory if the history can't be read.
        """
        ...
