"""After a failed attempt: again, later, or never. One table."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BY_NAME
from loom.domain.run.retry_policy import (
    DEFAULT_LIMITS,
    MAX_LOST,
    TIMED_OUT,
    Again,
    Failure,
    FailureKind,
    GiveUp,
    RetryDecision,
    RetryLimits,
    ShortenFirst,
    Tries,
    after_failure,
    count,
)


def failure(kind: str, retry_after: object = None) -> Failure:
    """A failure of the provider of this type, or of this kind if there is such a kind."""
    context = {} if retry_after is None else {"retry_after": retry_after}
    kinds: dict[str, FailureKind] = {"lost": "lost", "infrastructure": "infrastructure"}
    return Failure(kind=kinds.get(kind, "provider"), type=kind, message="no", context=context)


@pytest.mark.parametrize(
    ("tries", "failed", "decision"),
    [
        # Three attempts, 1 s and 2 s apart.
        (Tries(), failure("LLMUnavailableError"), Again(delay=1.0)),
        (Tries(failed=1), failure("LLMUnavailableError"), Again(delay=2.0)),
        (Tries(failed=2), failure("LLMUnavailableError"), GiveUp()),
        (Tries(), failure(TIMED_OUT), Again(delay=1.0)),
        (Tries(failed=2), failure(TIMED_OUT), GiveUp()),
        # As long as the provider asks, unless nobody would wait that long.
        (Tries(), failure("LLMRateLimitError"), Again(delay=1.0)),
        (Tries(failed=1), failure("LLMRateLimitError", 7.5), Again(delay=7.5)),
        (Tries(), failure("LLMRateLimitError", 0), Again(delay=1.0)),
        (Tries(), failure("LLMRateLimitError", 600), Again(delay=600.0)),
        (Tries(), failure("LLMRateLimitError", 601), GiveUp()),
        (Tries(), failure("LLMRateLimitError", math.inf), GiveUp()),
        (Tries(), failure("LLMRateLimitError", -1), Again(delay=1.0)),
        (Tries(), failure("LLMRateLimitError", math.nan), Again(delay=1.0)),
        (Tries(), failure("LLMRateLimitError", "soon"), Again(delay=1.0)),
        (Tries(failed=2), failure("LLMRateLimitError", 1), GiveUp()),
        # What cannot get better is not tried again.
        (Tries(), failure("LLMConfigurationError"), GiveUp()),
        (Tries(), failure("LLMRefusedError"), GiveUp()),
        (Tries(), failure("ValueError"), GiveUp()),
        # Too long: shortened once.
        (Tries(failed=2), failure("LLMContextLengthError"), ShortenFirst()),
        (Tries(trimmed=1), failure("LLMContextLengthError"), GiveUp()),
        # A dead worker is nobody's fault, up to a point.
        (Tries(failed=2, lost=3), failure("lost"), Again(delay=0.0)),
        (Tries(lost=MAX_LOST), failure("lost"), GiveUp()),
        (Tries(away=1000), failure("lost"), Again(delay=0.0)),
        # An outage is waited for, however long.
        (Tries(), failure("infrastructure"), Again(delay=1.0)),
        (Tries(away=3), failure("infrastructure"), Again(delay=8.0)),
        (Tries(away=100_000, lost=MAX_LOST), failure("infrastructure"), Again(delay=60.0)),
        # Whoever waits for a permit comes back at the time that it was given.
        (Tries(away=7), failure("infrastructure", 0.25), Again(delay=0.25)),
        (Tries(), failure("infrastructure", 1800), Again(delay=1800.0)),
    ],
)
def test_the_decision_after_a_failure(tries: Tries, failed: Failure, decision: RetryDecision) -> None:
    assert after_failure(tries, failed) == decision


@pytest.mark.parametrize(
    ("failed", "tries"),
    [
        (failure("LLMUnavailableError"), Tries(failed=2, lost=1)),
        (failure("LLMContextLengthError"), Tries(failed=1, lost=1, trimmed=1)),
        (failure("lost"), Tries(failed=1, lost=2)),
        (failure("infrastructure"), Tries(failed=1, lost=1, away=1)),
    ],
)
def test_each_failure_counts_for_its_kind_and_numbers_the_next_attempt(failed: Failure, tries: Tries) -> None:
    assert count(Tries(failed=1, lost=1), failed) == tries
    assert tries.attempt == 4


@given(
    st.lists(st.sampled_from(["lost", "infrastructure", *BY_NAME])),
    st.builds(RetryLimits, attempts=st.integers(1, 9), first_delay=st.floats(0.1, 9), longest_delay=st.floats(0.1, 99)),
)
def test_delays_are_bounded_and_providers_get_as_many_attempts_as_the_agent_allows(
    kinds: list[str], limits: RetryLimits
) -> None:
    tries = Tries()
    for kind in kinds:
        decision = after_failure(tries, failure(kind), limits)
        if isinstance(decision, GiveUp):
            break
        assert isinstance(decision, ShortenFirst) or 0 <= decision.delay <= max(
            limits.longest_delay, DEFAULT_LIMITS.longest_delay
        )
        tries = count(tries, failure(kind))
    assert tries.failed < limits.attempts
    assert tries.trimmed <= 1
