"""After a failed activity: again now, again later, or never. A decision is a value; the workflow carries it out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.errors import BY_NAME

MAX_ATTEMPTS: Final = 3
MAX_LOST: Final = 20
"""A call that has taken this many workers with it is not tried again."""
FIRST_DELAY: Final = 1.0
BASE: Final = 2.0
LONGEST_DELAY: Final = 60.0
LONGEST_RETRY_AFTER: Final = 600.0

TIMED_OUT: Final = "Timeout"
"""Type of a failure that used up the time for one attempt."""

STORE_AWAY: Final = "StoreUnavailable"
"""Type of a failure before anything began, since a store of Loom's own that it needs did not answer."""

FailureKind: TypeAlias = Literal["lost", "infrastructure", "provider"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failed attempt, as the workflow saw it."""

    kind: FailureKind
    """lost: the worker died; infrastructure: Loom's own store was away; provider: the work itself failed."""
    type: str
    message: str
    context: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """The failed attempts so far at one piece of work; only the provider's own count against it."""

    failed: int = 0
    lost: int = 0
    """Number of attempts whose worker died."""
    away: int = 0
    """Attempts that found Loom's own parts away: an outage is waited for, however long."""
    trimmed: int = 0
    """Times the conversation was shortened because it was too long for the model."""
    resent: int = 0
    """Times a worker did not know the transcript and asked for it whole."""
    uncovered: int = 0
    """Times that the budget did not cover the call, and nothing was sent."""
    earlier: int = 0
    """Attempts at the same call that other models have spent."""

    @property
    def attempt(self) -> int:
        """Number of the attempt that comes next, from 1."""
        return 1 + self.failed + self.lost + self.away + self.trimmed + self.resent + self.uncovered + self.earlier


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Try again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortenFirst:
    """Shorten the conversation, then try again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """Trying again cannot help, or has been tried enough."""


RetryDecision: TypeAlias = Again | ShortenFirst | GiveUp


def after_failure(tries: Tries, failure: Failure) -> RetryDecision:
    """What to do after one more failure: three tries, 1 s, 2 s, … at most 60 s, the provider's retry-after first."""
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
