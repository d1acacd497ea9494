"""The retry policy for failed activities: retry immediately, retry later, or give up. The decision is a value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.errors import BY_NAME, LLMRateLimitError
from loom.domain.core.frozen import replace
from loom.domain.core.messages import Usage

MAX_LOST: Final = 20
"""A call is not retried after it has lost this many workers."""
BASE: Final = 2.0
LONGEST_RETRY_AFTER: Final = 600.0

TIMED_OUT: Final = "Timeout"
"""The failure type for an attempt that timed out."""

STORE_AWAY: Final = "StoreUnavailable"
"""The failure type for an attempt that did not start because one of Loom's own stores did not respond."""

CLONE_AWAY: Final = "CloneUnavailable"
"""The failure type for an attempt that did not start because the run's clone can't be used at present."""

USED: Final = "used"
"""The part of a failure's context that says what a model call used before its reply broke off."""

FailureKind: TypeAlias = Literal["lost", "infrastructure", "provider"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryLimits:
    """How often work is attempted after provider failures, and the delays between the attempts in seconds."""

    attempts: int = 3
    first_delay: float = 1.0
    longest_delay: float = 60.0

    def delay(self, earlier: int) -> float:
        """Return the delay after this number of earlier failures. It doubles with each failure."""
        # Cap the exponent, because a power of hundreds of failures is too large for a float.
        return min(self.longest_delay, self.first_delay * BASE ** min(earlier, 64))


DEFAULT_LIMITS: Final = RetryLimits()


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

    @property
    def used(self) -> tuple[Usage, int | None] | None:
        """What the failed model call used, and its cost in millionths of a US dollar, if the price is known."""
        if (used := self.context.get(USED)) is None:
            return None
        return Usage(**{name: count for name, count in used.items() if name != "cost_micros"}), used["cost_micros"]


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


def after_failure(tries: Tries, failure: Failure, limits: RetryLimits = DEFAULT_LIMITS) -> RetryDecision:
    """Decide how to proceed after a failure.

    After a provider failure, work is attempted as often as `limits` allow. A `retry-after` delay that the provider
    specifies takes precedence over the delay of the limits.
    """
    if failure.kind == "infrastructure":
        # A call that waits for a permit is told when to come back.
        return Again(delay=retry_after(failure) or DEFAULT_LIMITS.delay(tries.away))
    if failure.kind == "lost":
        return Again(delay=0.0) if tries.lost < MAX_LOST else GiveUp()
    if failure.type == "LLMContextLengthError":
        return ShortenFirst() if tries.trimmed == 0 else GiveUp()
    known = BY_NAME.get(failure.type)
    hopeless = failure.type != TIMED_OUT and (known is None or not known.recoverable)
    if hopeless or tries.failed + 1 >= limits.attempts:
        return GiveUp()
    if (asked := retry_after(failure)) is not None:
        return Again(delay=asked) if asked <= LONGEST_RETRY_AFTER else GiveUp()
    return Again(delay=limits.delay(tries.failed))


def retry_after(failure: Failure) -> float | None:
    """Return the delay in seconds that the failure itself specifies, or None."""
    asked = failure.context.get("retry_after")
    return float(asked) if isinstance(asked, int | float) and asked > 0 else None


def waits_for_all(failure: Failure) -> bool:
    """Whether a model call was not sent because the provider has asked all calls to wait."""
    return failure.type == LLMRateLimitError.__name__ and failure.context.get("has_run") is False


def count(tries: Tries, failure: Failure) -> Tries:
    """Return the attempts with this failure added to the matching count."""
    if failure.kind == "lost":
        return replace(tries, lost=tries.lost + 1)
    if failure.kind == "infrastructure" or waits_for_all(failure):
        return replace(tries, away=tries.away + 1)
    if failure.type == "LLMContextLengthError":
        return replace(tries, trimmed=tries.trimmed + 1)
    return replace(tries, failed=tries.failed + 1)
