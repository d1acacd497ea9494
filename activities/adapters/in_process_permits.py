"""Permits that one process counts by itself, without a server. `redis.permits` does the same for all workers."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Final

from loom.activities.model_permits import (
    FIRST_OPEN_MS,
    LATE_MS,
    LONGEST_PAUSE_MS,
    PAUSE_MS,
    PROBE_ANSWERS_MS,
    PROBE_MS,
    RECENT,
    RESERVED_MS,
    SPACING_MS,
    SPREAD_MS,
    WINDOW_MS,
    Outcome,
    Permit,
    PermitRequest,
    PermitRules,
    Wait,
    WaitReason,
)

_MS: Final = 1_000_000


def _clock() -> int:
    return monotonic_ns() // _MS


class InProcessPermits:
    """`Permits` of one process."""

    def __init__(self, rules: PermitRules | None = None, clock: Callable[[], int] = _clock) -> None:
        """`clock` returns milliseconds."""
        self._rules = rules or PermitRules()
        self._clock = clock
        self._breakers: defaultdict[tuple[str, str], _Breaker] = defaultdict(_Breaker)
        self._buckets: defaultdict[tuple[str, str, str], _Bucket] = defaultdict(_Bucket)

    async def take(self, request: PermitRequest) -> Permit | Wait:
        """See the port."""
        now = self._clock()
        breaker = self._breakers[request.account, request.model]
        if (closed_for := breaker.refuses(request, now)) is not None:
            wait, reason = closed_for
            return Wait(seconds=wait / 1000, reason=reason, because=breaker.because if reason == "open" else "")
        limited = [(bucket, rpm, tpm) for bucket, rpm, tpm in self._limited(request) if rpm or tpm]
        wait = max((bucket.wait(request, rpm, tpm, now) for bucket, rpm, tpm in limited), default=0)
        for bucket, _, tpm in limited:
            if wait:
                bucket.queue(request, tpm, due=now + wait)
            else:
                bucket.enter(request, tpm, now, breaker.number + 1)
        if wait:
            return Wait(seconds=wait / 1000, reason="limit")
        return breaker.enter(request, now)

    async def settle(self, permit: Permit, outcome: Outcome) -> None:
        """See the port."""
        request = permit.request
        if outcome.tokens is not None:
            for bucket, _, _ in self._limited(request):
                bucket.correct(permit.number, outcome.tokens)
        self._breakers[request.account, request.model].settle(permit, outcome, self._rules, self._clock())

    def _limited(self, request: PermitRequest) -> Iterator[tuple["_Bucket", int | None, int | None]]:
        yield self._buckets[request.account, request.model, ""], self._rules.rpm, self._rules.tpm
        if request.rpm or request.tpm:
            yield self._buckets[request.account, request.model, request.agent], request.rpm, request.tpm


@dataclass(slots=True)
class _Breaker:
    number: int = 0
    recent: str = ""
    """The latest outcomes: `1` for a failure, `0` for any other."""
    open_until: int = 0
    """0 if the breaker is closed."""
    openings: int = 0
    closed_at: int = 0
    probe: int = 0
    """The number of the permit that probes, or 0."""
    probe_until: int = 0
    paused_until: int = 0
    pauses: int = 0
    place: int = 0
    """The number of calls that were turned away since the breaker opened or the pause began."""
    because: str = ""

    def refuses(self, request: PermitRequest, now: int) -> tuple[int, WaitReason] | None:
        """Return how long a call must wait, or None if the breaker lets it through."""
        is_probed = self.probe > 0 and self.probe_until > now
        if self.open_until > now and (is_probed or not request.insists):
            later = PROBE_ANSWERS_MS if self.place else 0
            return self.open_until - now + later + self._next_place(), "open"
        if self.open_until and is_probed:
            return PROBE_ANSWERS_MS + self._next_place(), "open"
        if self.paused_until > now and not request.insists:
            return self.paused_until - now + self._next_place(), "paused"
        return None

    def _next_place(self) -> int:
        self.place += 1
        return (self.place - 1) * SPACING_MS % SPREAD_MS

    def enter(self, request: PermitRequest, now: int) -> Permit:
        """Return a permit. If the breaker is half-open, the call probes."""
        self.number += 1
        if self.open_until:
            self.probe, self.probe_until = self.number, now + PROBE_MS
        return Permit(request=request, number=self.number, probes=bool(self.open_until) or self.paused_until > now)

    def settle(self, permit: Permit, outcome: Outcome, rules: PermitRules, now: int) -> None:
        """Record an outcome."""
        self._settle_pause(permit, outcome, now)
        if self.open_until:
            self._settle_probe(permit, outcome, rules, now)
        elif outcome.kind == "failed":
            self._record("1")
            failures = self.recent.count("1")
            if rules.failures and failures >= rules.failures and 2 * failures >= len(self.recent):
                self._open(outcome, rules, now)
        elif outcome.kind == "answered":
            self._record("0")
            if now >= self.paused_until:
                self.pauses = 0
            if now >= self.closed_at + round(rules.longest_open * 1000):
                self.openings = 0

    def _settle_probe(self, permit: Permit, outcome: Outcome, rules: PermitRules, now: int) -> None:
        """Record an outcome while the breaker isn't closed. Only probes count."""
        if permit.probes and outcome.kind in {"answered", "throttled"}:
            self.open_until, self.probe, self.recent, self.closed_at = 0, 0, "", now
        elif permit.number != self.probe:
            return
        elif outcome.kind == "failed":
            self._open(outcome, rules, now)
        else:
            self.probe = 0

    def _record(self, outcome: str) -> None:
        self.recent = (self.recent + outcome)[-RECENT:]

    def _open(self, outcome: Outcome, rules: PermitRules, now: int) -> None:
        self.open_until = now + min(round(rules.longest_open * 1000), FIRST_OPEN_MS * 2 ** min(self.openings, 20))
        self.openings += 1
        self.probe, self.place, self.because = 0, 0, outcome.because

    def _settle_pause(self, permit: Permit, outcome: Outcome, now: int) -> None:
        if outcome.kind == "answered" and permit.probes:
            self.paused_until = 0
        if outcome.kind != "throttled":
            return
        if self.paused_until <= now:
            self.pauses, self.place = self.pauses + 1, 0
        backoff = min(60_000, PAUSE_MS * 2 ** max(0, min(self.pauses - 1, 20)))
        asked = outcome.retry_after
        pause = backoff if asked is None else min(LONGEST_PAUSE_MS, round(asked * 1000))
        self.paused_until = max(self.paused_until, now + pause)


@dataclass(slots=True)
class _Waiting:
    turn: int
    arrival: int
    session: str
    tokens: int
    due: int

    @property
    def place(self) -> tuple[int, int]:
        return self.turn, self.arrival


@dataclass(slots=True)
class _Entered:
    at: int
    tokens: int


@dataclass(slots=True)
class _Bucket:
    """The calls of the last minute under one limit, and those that wait.

    Sessions take turns (start-time fair queueing). Each call of a session gets a higher turn than the one before, but
    never a lower one than that of the latest call that was sent. Calls are sent in the order of their turns.
    """

    entered: dict[int, _Entered] = field(default_factory=dict)
    waiting: dict[tuple[str, str], _Waiting] = field(default_factory=dict)
    arrivals: int = 0
    turn: int = 0
    """The latest turn in which a call was sent."""
    served: set[str] = field(default_factory=set)
    """The sessions that have had this turn."""

    def wait(self, request: PermitRequest, rpm: int | None, tpm: int | None, now: int) -> int:
        """Return how long the call must wait, in milliseconds."""
        self._forget(now)
        place = self._place(request)
        ahead = [call for call in self.waiting.values() if call.place < place]
        soon = [call for call in ahead if call.due <= now + RESERVED_MS]
        tokens = _needed(request, tpm)
        requests_left = rpm is None or len(self.entered) + len(soon) < rpm
        tokens_left = tpm is None or self._used + sum(call.tokens for call in soon) + tokens <= tpm
        if requests_left and tokens_left:
            return 0
        return max(1, self._free_at(ahead, tokens, rpm, tpm, now) - now)

    def queue(self, request: PermitRequest, tpm: int | None, *, due: int) -> None:
        """Let the call wait. A call that is already waiting keeps its place."""
        turn, arrival = self._place(request)
        self.arrivals = max(self.arrivals, arrival)
        self.waiting[request.session, request.caller] = _Waiting(
            turn=turn, arrival=arrival, session=request.session, tokens=_needed(request, tpm), due=due
        )

    def enter(self, request: PermitRequest, tpm: int | None, now: int, number: int) -> None:
        """Count the call."""
        turn, _ = self._place(request)
        if turn > self.turn:
            self.turn, self.served = turn, set()
        if turn == self.turn:
            self.served.add(request.session)
        self.waiting.pop((request.session, request.caller), None)
        self.entered[number] = _Entered(at=now, tokens=_needed(request, tpm))

    def correct(self, number: int, tokens: int) -> None:
        """Replace the expected number of tokens by the actual one."""
        if number in self.entered:
            self.entered[number].tokens = tokens

    @property
    def _used(self) -> int:
        return sum(call.tokens for call in self.entered.values())

    def _forget(self, now: int) -> None:
        self.entered = {number: call for number, call in self.entered.items() if call.at > now - WINDOW_MS}
        self.waiting = {key: call for key, call in self.waiting.items() if call.due > now - LATE_MS}

    def _place(self, request: PermitRequest) -> tuple[int, int]:
        """Return the call's turn, and its place among the calls of that turn."""
        if (known := self.waiting.get((request.session, request.caller))) is not None:
            return known.place
        turn = self.turn + (request.session in self.served)
        own = (call.turn + 1 for call in self.waiting.values() if call.session == request.session)
        return max([turn, *own]), self.arrivals + 1

    def _free_at(self, ahead: Sequence[_Waiting], tokens: int, rpm: int | None, tpm: int | None, now: int) -> int:
        """Return when there is room for the call and for those ahead of it."""
        free = now
        leaving = deque(self.entered.values())
        if rpm is not None and (over := len(leaving) + len(ahead) + 1 - rpm) > 0:
            rounds, index = divmod(over - 1, rpm)
            last = leaving[index].at if index < len(leaving) else now
            free = last + WINDOW_MS * (1 + rounds)
        if tpm is not None:
            over = self._used + sum(call.tokens for call in ahead) + tokens - tpm
            at = now
            while over > 0 and leaving:
                call = leaving.popleft()
                over, at = over - call.tokens, call.at + WINDOW_MS
            if over > 0:
                at = now + WINDOW_MS * (1 + over // tpm)
            free = max(free, at)
        return free


def _needed(request: PermitRequest, tpm: int | None) -> int:
    """Return the tokens that are set aside for the call. A call that needs more than the limit waits for all of it."""
    return request.tokens if tpm is None else min(request.tokens, tpm)
