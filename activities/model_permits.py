"""Permits for model calls: a circuit breaker and rate limits for each provider and model, which all runs share.

    closed ──half of the last 20 calls failed──▶ open ──its time is up──▶ half-open
       ▲                                          ▲                        │     │
       │                                          └─────the probe failed───┘     │
       └───────the provider answered the probe; the other runs return one by one─┘

Every model call takes a permit first. While the breaker is open, no call is sent. In the half-open state, one run
probes the provider. A call without a permit fails, and its error says when to come back. Each call gets a different
time. The run waits in the workflow, so that waiting takes up no activity slot.

A call counts as failed if the provider can't be reached, times out, responds with a server error, or breaks off or
garbles its reply. A 429 response doesn't open the breaker: all calls pause for as long as the provider asks. Any other
response proves that the provider works.
"""

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, TypeAlias

from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import (
    CircuitBreakerOpenError,
    LLMBadResponseError,
    LLMRateLimitError,
    LLMUnavailableError,
    LoomError,
    NoPermitError,
)

WINDOW_MS: Final = 60_000
"""The length of the window for requests and tokens per minute."""
RECENT: Final = 20
"""The number of latest calls that the breaker judges."""
FIRST_OPEN_MS: Final = 5_000
"""How long the breaker stays open at first. The time doubles after each probe that fails."""
PROBE_MS: Final = 60_000
"""If a probe has no result after this time, another run probes."""
PROBE_ANSWERS_MS: Final = 5_000
"""Runs that wait for a probe come back this long after it starts."""
SPACING_MS: Final = 400
"""The interval between two runs that come back."""
SPREAD_MS: Final = 30_000
"""All waiting runs come back within this time."""
PAUSE_MS: Final = 1_000
"""How long calls pause after a 429 response without `retry-after`. It doubles if the next response is the same."""
LONGEST_PAUSE_MS: Final = 600_000
RESERVED_MS: Final = 5_000
"""Capacity is reserved for waiting calls that come back within this time."""
LATE_MS: Final = 10_000
"""A waiting call that is this late counts as abandoned."""
HOLD: Final = 3.0
"""Seconds that a call waits for a permit inside the activity. For a longer wait, the activity fails."""
LONGEST_REASON: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class PermitRules:
    """The worker's settings for permits. They apply to each provider and model."""

    failures: int = 5
    """The breaker opens after at least this many failures among the latest calls. 0: it never opens."""
    longest_open: float = 60.0
    """The maximum number of seconds between two probes."""
    rpm: int | None = None
    """The maximum number of requests per minute."""
    tpm: int | None = None
    """The maximum number of tokens per minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PermitRequest:
    """A model call that needs a permit."""

    account: str
    """Identifies the server and the key. Calls with the same account and model share their limits."""
    model: str
    """The name with the provider's prefix."""
    session: str = ""
    """The root run. Waiting calls take turns by session."""
    caller: str = ""
    """The run. It waits for at most one call at a time."""
    tokens: int = 0
    """The maximum number of tokens that the call may use."""
    agent: str = ""
    rpm: int | None = None
    """The agent's own limit of requests per minute, for all its runs together."""
    tpm: int | None = None
    insists: bool = False
    """Whether to call a provider that has asked clients to wait, or to probe one whose breaker is open. If another
    call probes it, this call waits.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Permit:
    """Permission to send one model call."""

    request: PermitRequest
    number: int
    probes: bool = False
    """Whether the call finds out if the provider works again."""
    is_shared: bool = False
    """Whether all workers count this call, or only this worker."""


WaitReason: TypeAlias = Literal["open", "paused", "limit"]
"""The breaker is open; the provider has asked clients to wait; or a rate limit is reached."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """The call may not be sent yet."""

    seconds: float
    reason: WaitReason
    because: str = ""
    """The failure that opened the breaker."""


OutcomeKind: TypeAlias = Literal["answered", "failed", "throttled", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a call, as far as it concerns later calls."""

    kind: OutcomeKind
    """`unknown` means that the call was cancelled, which proves nothing about the provider."""
    tokens: int | None = None
    """The number of tokens that the call used, if known."""
    retry_after: float | None = None
    because: str = ""


class Permits(Protocol):
    """Decides which model calls may be sent now. No method raises an exception."""

    async def take(self, request: PermitRequest) -> Permit | Wait:
        """Return a permit, or how long to wait before asking again."""
        ...

    async def settle(self, permit: Permit, outcome: Outcome) -> None:
        """Record a call's outcome. The outcome of a call that was answered may be recorded soon afterward, so that the
        answer doesn't wait. A probe's outcome may be recorded twice: as soon as it's known that the provider responds,
        and at the end.
        """
        ...


class PermittedProvider:
    """An `LLMProvider` that takes a permit before each call."""

    def __init__(self, provider: LLMProvider, permits: Permits, *, account: str, model: str) -> None:
        self.provider = provider
        self._permits = permits
        self._account = account
        self._model = model

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """See the port. If the call may not be sent yet, raise CircuitBreakerOpenError, LLMRateLimitError or
        NoPermitError.
        """
        permit = await self._permit(self._request(call))
        heard = _FirstWords(self._permits, permit, on_delta) if permit.probes else None
        outcome = Outcome(kind="unknown")
        try:
            answer = await self.provider.answer(call, on_delta if heard is None else heard.add)
            outcome = Outcome(kind="answered", tokens=answer.usage.total_tokens)
        except LoomError as error:
            outcome = _outcome_of(error)
            raise
        finally:
            if heard is not None and await heard.told():
                permit = replace(permit, probes=False)  # the breaker may have opened again since the first words
            await self._permits.settle(permit, outcome)
        return answer

    def _request(self, call: ModelCall) -> PermitRequest:
        origin = call.origin
        return PermitRequest(
            account=self._account,
            model=self._model,
            session=(origin.root_run_id or origin.run_id) if origin else "",
            caller=origin.run_id if origin else "",
            tokens=call.expected_prompt + call.max_output_tokens,
            agent=origin.agent if origin else "",
            rpm=call.rpm,
            tpm=call.tpm,
            insists=call.insists,
        )

    async def _permit(self, request: PermitRequest) -> Permit:
        left = HOLD
        while isinstance(found := await self._permits.take(request), Wait):
            if found.seconds > left:
                raise self._error_of(found)
            left -= found.seconds
            await asyncio.sleep(found.seconds)
        return found

    def _error_of(self, wait: Wait) -> LoomError:
        provider, _, _ = self._model.partition(":")
        context = {"retry_after": round(wait.seconds, 3), "provider": provider, "model": self._model, "has_run": False}
        match wait.reason:
            case "open":
                text = f"{self._model} is not called at present, because its latest calls failed"
                told = f"{text}: {wait.because}" if wait.because else text
                return CircuitBreakerOpenError(told, **context, because=wait.because)
            case "paused":
                text = f"{self._model} is not called at present, because the provider reported too many requests"
                return LLMRateLimitError(text, **context)
            case "limit":
                because = "the limit of requests or tokens per minute is reached"
                return NoPermitError(f"the call of {self._model} waits its turn: {because}", **context, because=because)


class _FirstWords:
    """Reports that the provider responds as soon as a probe receives text. A whole reply may take minutes."""

    def __init__(self, permits: Permits, permit: Permit, on_delta: OnDelta) -> None:
        self._permits = permits
        self._permit = permit
        self._on_delta = on_delta
        self._telling: asyncio.Task[None] | None = None

    def add(self, text: str) -> None:
        """Pass the text on."""
        if self._telling is None:
            self._telling = asyncio.create_task(self._permits.settle(self._permit, Outcome(kind="answered")))
        self._on_delta(text)

    async def told(self) -> bool:
        """Wait until the report is delivered. Return False if there was nothing to report."""
        if self._telling is None:
            return False
        await self._telling
        return True


def _outcome_of(error: LoomError) -> Outcome:
    match error:
        case LLMRateLimitError():
            asked = error.retry_after
            sound = asked is not None and math.isfinite(asked) and asked >= 0
            return Outcome(kind="throttled", tokens=0, retry_after=asked if sound else None)
        case LLMUnavailableError() | LLMBadResponseError():
            because = f"{type(error).__name__}: {error.message}"[:LONGEST_REASON]
            return Outcome(kind="failed", tokens=error.used.total_tokens if error.used else None, because=because)
        case _:
            return Outcome(kind="answered", tokens=0)
