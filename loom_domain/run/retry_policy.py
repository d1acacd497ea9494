"""The retry policy for failed activities: again now, again later, or not at all. The decision is a value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.errors import BY_NAME

MAX_ATTEMPTS: Final = 3
MAX_LOST: Final = 20
"""A call during which this many workers were lost is not retried."""
FIRST_DELAY: Final = 1.0
BASE: Final = 2.0
LONGEST_DELAY: Final = 60.0
LONGEST_RETRY_AFTER: Final = 600.0

TIMED_OUT: Final = "Timeout"
"""Type of a failure by timeout of one attempt."""

STORE_AWAY: Final = "StoreUnavailable"
"""Type of a failure before anything began, because one of Loom's own stores did not answer."""

FailureKind: TypeAlias = Literal["lost", "infrastructure", "provider"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failed attempt, as the workflow saw it."""

    kind: FailureKind
    """lost: the worker died; infrastructure: one of Loom's stores was unavailable; provider: the work itself failed."""
    type: str
    message: str
    context: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """The failed attempts so far at one piece of work; only the provider's own count against it."""

    failed: int = 0
    lost: int = 0
    """Attempts whose worker died."""
    away: int = 0
    """Attempts that found one of Loom's own parts unavailable; a run waits for the end of an outage, however long."""
    trimmed: int = 0
    """Times the conversation was shortened because it was too long for the model."""
    resent: int = 0
    """Times a worker did not know the transcript and asked for the whole of it."""
    uncovered: int = 0
    """Times that the budget did not cover the call, and nothing was sent."""
    earlier: int = 0
    """Attempts at the same call that other models have spent."""

    @property
    def attempt(self) -> int:
        """Number of the next attempt, from 1."""
        return 1 + self.failed + self.lost + self.away + self.trimmed + self.resent + self.uncovered + self.earlier


NOT_TRIED: Final = Tries()
"""Before the first attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Try again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortenFirst:
    """Shorten the conversation, then try again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """Retrying cannot help, or there were enough attempts."""


RetryDecision: TypeAlias = Again | ShortenFirst | GiveUp


def after_failure(tries: Tries, failure: Failure) -> RetryDecision:
    """What to do after one more failure: three attempts, after 1 s, 2 s, … 60 s, or the provider's own retry-after."""
    if failure.kind == "infrastructure":
        return Again(delay=_backoff(min(tries.away, 6)))
    if failure.kind == "lost":
        return Again(delay=0.0) if tries.lost < MAX_LOST else GiveUp()
    if failure.type == "LLMContextLengthError":
        return ShortenFirst() if tries.trimmed == 0 else GiveUp()
    known = BY_NAME.get(failure.type)
    hopeless = failure.type != TIMED_OUT and (known is None or not known.recoverable)
    if hopeless or tries.failed + 1 >= MAX_ATTEMPTS:
        return GiveUp()
    asked = failure.context.get("retry_after")
    if isinstance(asked, int | float) and asked > 0:
        return Again(delay=float(asked)) if asked <= LONGEST_RETRY_AFTER else GiveUp()
    return Again(delay=_backoff(tries.failed))


def count(tries: Tries, failure: Failure) -> Tries:
    """The tries with this failure added to its kind."""
    if failure.kind == "lost":
        return replace(tries, lost=tries.lost + 1)
    if failure.kind == "infrastructure":
        return replace(tries, away=tries.away + 1)
    if failure.type == "LLMContextLengthError":
        return replace(tries, trimmed=tries.trimmed + 1)
    return replace(tries, failed=tries.failed + 1)


def _backoff(earlier: int) -> float:
    return min(LONGEST_DELAY, FIRST_DELAY * BASE**earlier)
