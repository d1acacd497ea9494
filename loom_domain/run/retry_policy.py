"""The retry policy for failed activities: retry immediately, retry later, or give up. The decision is a value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.errors import BY_NAME

MAX_ATTEMPTS: Final = 3
MAX_LOST: Final = 20
"""A call is not retried after it has lost this many workers."""
FIRST_DELAY: Final = 1.0
BASE: Final = 2.0
LONGEST_DELAY: Final = 60.0
LONGEST_RETRY_AFTER: Final = 600.0

TIMED_OUT: Final = "Timeout"
"""The failure type for an attempt that timed out."""

STORE_AWAY: Final = "StoreUnavailable"
"""The failure type for an attempt that did not start because one of Loom's own stores did not respond."""

FailureKind: TypeAlias = Literal["lost", "infrastructure", "provider"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A failed attempt, as observed by the workflow."""

    kind: FailureKind
    """The kind of failure. `lost` means that the worker died. `infrastructure` means that one of Loom's stores was
    unavailable. `provider` means that the work itself failed.
    """
    type: str
    message: str
    context: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """The failed attempts at one piece of work so far. Only provider failures count toward the attempt limit."""

    failed: int = 0
    lost: int = 0
    """The number of attempts whose worker died."""
    away: int = 0
    """The number of attempts that failed because a part of Loom was unavailable. These attempts aren't limited, because
    a run waits until the outage ends.
    """
    trimmed: int = 0
    """How often the conversation was shortened because it was too long for the model."""
    resent: int = 0
    """How often a worker did not have the transcript and asked for it in full."""
    uncovered: int = 0
    """How often the call was not sent because the budget did not cover it."""
    earlier: int = 0
    """The number of attempts at the same call with models that were tried earlier."""

    @property
    def attempt(self) -> int:
        """The number of the next attempt, starting at 1."""
        return 1 + self.failed + self.lost + self.away + self.trimmed + self.resent + self.uncovered + self.earlier


NOT_TRIED: Final = Tries()
"""The tries for work that has not been attempted yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Try again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortenFirst:
    """Shorten the conversation, then try again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """Retrying cannot help, or the maximum number of attempts has been reached."""


RetryDecision: TypeAlias = Again | ShortenFirst | GiveUp


def after_failure(tries: Tries, failure: Failure) -> RetryDecision:
    """Decide how to proceed after a failure.

    After a provider failure, work is attempted at most three times in total. The delay doubles from 1 s up to 60 s,
    unless the provider specifies a `retry-after` delay.
    """
    if failure.kind == "infrastructure":
        asked = failure.context.get("retry_after")  # a call that waits for a permit has its own time to come back
        return Again(delay=float(asked) if isinstance(asked, int | float) else _backoff(min(tries.away, 6)))
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
    """Return the tries with this failure added to the matching count."""
    if failure.kind == "lost":
        return replace(tries, lost=tries.lost + 1)
    if failure.kind == "infrastructure":
        return replace(tries, away=tries.away + 1)
    if failure.type == "LLMContextLengthError":
        return replace(tries, trimmed=tries.trimmed + 1)
    return replace(tries, failed=tries.failed + 1)


def _backoff(earlier: int) -> float:
    return min(LONGEST_DELAY, FIRST_DELAY * BASE**earlier)
