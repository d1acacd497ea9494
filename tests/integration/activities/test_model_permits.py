"""Permits for model calls: the circuit breaker, the rate limits, and the turns of sessions. Tests set the clock."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final, TypeAlias
from uuid import uuid4

from hypothesis import example, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.in_process_permits import InProcessPermits
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.permits import RedisPermits
from loom.activities.model_permits import (
    SPACING_MS,
    WINDOW_MS,
    Outcome,
    OutcomeKind,
    Permit,
    PermitRequest,
    PermitRules,
    Permits,
    Wait,
)

ANSWERED: Final = Outcome(kind="answered")
FAILED: Final = Outcome(kind="failed", because="LLMUnavailableError: no connection")
SESSIONS: Final = ("a", "b", "c")


class Clock:
    """Milliseconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


def call(session: str = "a", caller: str = "", *, tokens: int = 10, insists: bool = False) -> PermitRequest:
    return PermitRequest(
        account="acc", model="openai:m", session=session, caller=caller or session, tokens=tokens, insists=insists
    )


async def granted(permits: Permits, request: PermitRequest | None = None) -> Permit:
    found = await permits.take(request or call())
    assert isinstance(found, Permit), found
    return found


async def refused(permits: Permits, request: PermitRequest | None = None) -> Wait:
    found = await permits.take(request or call())
    assert isinstance(found, Wait), found
    return found


async def opened(permits: Permits, failures: int = 5) -> None:
    """Let the calls of many runs fail together."""
    for permit in [await granted(permits) for _ in range(failures)]:
        await permits.settle(permit, FAILED)


async def test_five_failures_open_the_breaker_and_say_why() -> None:
    permits = InProcessPermits(clock=Clock())
    await opened(permits, failures=4)
    await opened(permits, failures=1)
    assert await refused(permits) == Wait(seconds=5.0, reason="open", because=FAILED.because)


async def test_failures_among_many_answers_do_not_open_it() -> None:
    permits = InProcessPermits(clock=Clock())
    for outcome in [ANSWERED] * 11 + [FAILED] * 9:
        await permits.settle(await granted(permits), outcome)
    assert not (await granted(permits)).probes


async def test_one_run_probes_while_the_others_wait() -> None:
    permits = InProcessPermits(clock=(clock := Clock()))
    await opened(permits)
    clock.passes(5)
    assert (await granted(permits)).probes
    assert (await refused(permits)).reason == "open"


async def test_an_answered_probe_lets_the_others_back_in_one_after_the_other() -> None:
    permits = InProcessPermits(clock=(clock := Clock()))
    await opened(permits)
    back = sorted([(await refused(permits, call(caller=f"run-{n}"))).seconds for n in range(50)])
    assert back[0] == 5.0
    assert all(round(1000 * (later - earlier)) >= SPACING_MS for earlier, later in pairwise(back))
    assert back[-1] <= 5 + 5 + 30
    clock.passes(back[0])
    await permits.settle(await granted(permits), ANSWERED)
    for earlier, later in pairwise(back):
        clock.passes(later - earlier)
        await permits.settle(await granted(permits), ANSWERED)


@given(outage=st.integers(1, 300), lasts=st.integers(50, 4000))
@example(outage=60, lasts=50)
@example(outage=60, lasts=2000)
@example(outage=60, lasts=4000)
@settings(max_examples=50)
def test_fifty_runs_send_few_probes_and_have_all_gone_on_soon_after_an_outage(outage: int, lasts: int) -> None:
    clock = Clock()
    began, back = clock.now, clock.now + outage * 1000
    probes, done = asyncio.run(_outage(InProcessPermits(clock=clock), clock, runs=50, back=back, lasts=lasts))
    assert len(done) == 50
    assert all(later - earlier >= 5000 for earlier, later in pairwise(probes))
    assert sum(at < began + WINDOW_MS for at in probes) <= 12
    next_probe = min(outage * 1000 + 5000, WINDOW_MS) + lasts
    assert max(done) - back <= next_probe + 35_000 + lasts
    assert outage != 60 or max(done) - back <= WINDOW_MS


async def _outage(permits: Permits, clock: Clock, *, runs: int, back: int, lasts: int) -> tuple[list[int], list[int]]:
    """Let runs call a provider that fails until `back`. Return when runs probed it, and when runs had their answer."""
    due: list[tuple[int, int, int, Permit | None]] = [(clock.now, run, 0, None) for run in range(runs)]
    probes, done = [], []
    while due:
        clock.now, run, sent, permit = heappop(due)
        if permit is not None:
            await permits.settle(permit, ANSWERED if sent >= back else FAILED)
            if sent >= back:
                done.append(clock.now)
                continue
        found = await permits.take(call(f"run-{run}"))
        if isinstance(found, Wait):
            heappush(due, (clock.now + round(found.seconds * 1000), run, 0, None))
        else:
            heappush(due, (clock.now + lasts, run, clock.now, found))
            if found.probes:
                probes.append(clock.now)
    return probes, done


async def test_failed_probes_come_less_and_less_often() -> None:
    permits = InProcessPermits(clock=(clock := Clock()))
    await opened(permits)
    waits = []
    for _ in range(6):
        waits.append((await refused(permits)).seconds)
        clock.passes(waits[-1])
        await permits.settle(await granted(permits), FAILED)
    assert waits == [5, 10, 20, 40, 60, 60]


async def test_a_probe_that_never_ends_is_followed_by_another() -> None:
    permits = InProcessPermits(clock=(clock := Clock()))
    await opened(permits)
    clock.passes(5)
    slow = await granted(permits)
    clock.passes(60)
    assert (await granted(permits)).probes
    await permits.settle(slow, ANSWERED)
    assert not (await granted(permits)).probes


async def test_a_person_who_asks_for_a_try_gets_it_at_once_but_only_one() -> None:
    permits = InProcessPermits(clock=Clock())
    await opened(permits)
    await refused(permits)
    assert (await granted(permits, call(insists=True))).probes
    assert (await refused(permits, call("b", insists=True))).reason == "open"


async def test_a_person_can_ask_for_a_try_before_a_pause_is_over() -> None:
    permits = InProcessPermits(clock=Clock())
    await permits.settle(await granted(permits), Outcome(kind="throttled", retry_after=600))
    assert (await refused(permits)).reason == "paused"
    await permits.settle(await granted(permits, call(insists=True)), ANSWERED)
    assert not (await granted(permits, call("b"))).probes


async def test_a_cancelled_probe_proves_nothing_and_the_next_run_probes() -> None:
    permits = InProcessPermits(clock=(clock := Clock()))
    await opened(permits)
    clock.passes(5)
    await permits.settle(await granted(permits), Outcome(kind="unknown"))
    assert (await granted(permits)).probes


async def test_all_calls_pause_as_long_as_the_provider_asks() -> None:
    permits = InProcessPermits(clock=(clock := Clock()))
    await permits.settle(await granted(permits), Outcome(kind="throttled", retry_after=20))
    assert await refused(permits) == Wait(seconds=20, reason="paused")
    assert (await refused(permits, call("b"))).seconds == 20.4
    clock.passes(20)
    await granted(permits)


async def test_without_a_time_from_the_provider_each_pause_is_twice_as_long() -> None:
    permits = InProcessPermits(clock=(clock := Clock()))
    waits = []
    for _ in range(5):
        await permits.settle(await granted(permits), Outcome(kind="throttled"))
        waits.append((await refused(permits)).seconds)
        clock.passes(waits[-1])
    assert waits == [1, 2, 4, 8, 16]


async def test_a_breaker_that_is_off_never_opens() -> None:
    permits = InProcessPermits(PermitRules(failures=0), clock=Clock())
    await opened(permits, failures=50)
    assert not (await granted(permits)).probes


async def test_a_session_with_one_call_is_next_before_one_with_five_hundred() -> None:
    permits = InProcessPermits(PermitRules(rpm=10), clock=(clock := Clock()))
    for _ in range(10):
        await granted(permits, call("crowd"))
        clock.passes(1)
    crowd = [await refused(permits, call("crowd", f"run-{n}")) for n in range(500)]
    single = await refused(permits, call("single"))
    assert single.seconds == crowd[0].seconds == 50
    clock.passes(50)
    assert (await refused(permits, call("crowd", "run-0"))).seconds == 1
    await granted(permits, call("single"))


@given(
    crowds=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    rpm=st.integers(1, 12),
    minutes=st.integers(1, 6),
)
def test_every_session_gets_its_share_and_no_request_is_wasted(crowds: list[int], rpm: int, minutes: int) -> None:
    permits = InProcessPermits(PermitRules(rpm=rpm), clock=(clock := Clock()))
    calls = [call(str(session), f"{session}-{n}") for session, size in enumerate(crowds) for n in range(size)]
    served = asyncio.run(_served(permits, clock, calls, minutes))
    assert served.total() == min(sum(crowds), rpm * minutes)
    share = rpm * minutes // len(crowds)
    # Who came first took what was free at the beginning, before anybody had to wait.
    late = {str(session): min(size, share - rpm) for session, size in enumerate(crowds)}
    assert all(served[session] >= fair for session, fair in late.items()), served


async def _served(permits: Permits, clock: Clock, calls: Sequence[PermitRequest], minutes: int) -> Counter[str]:
    """Let calls come back when they were told to, and return how many of each session were sent."""
    due = dict.fromkeys(calls, clock.now)
    served: Counter[str] = Counter()
    end = clock.now + minutes * WINDOW_MS
    while due and (first := min(due.values())) < end:
        clock.now = first
        for one in [each for each, at in due.items() if at == first]:
            found = await permits.take(one)
            if isinstance(found, Wait):
                due[one] = clock.now + round(found.seconds * 1000)
            else:
                del due[one]
                served[one.session] += 1
    return served


async def test_a_call_that_needs_more_tokens_than_the_limit_is_sent_when_nothing_else_is() -> None:
    permits = InProcessPermits(PermitRules(tpm=100), clock=(clock := Clock()))
    await granted(permits, call(tokens=40))
    assert (await refused(permits, call(tokens=5000))).seconds == 60
    clock.passes(60)
    await granted(permits, call(tokens=5000))


async def test_tokens_that_a_call_did_not_use_are_free_again() -> None:
    permits = InProcessPermits(PermitRules(tpm=100), clock=Clock())
    permit = await granted(permits, call(tokens=90))
    assert (await refused(permits, call("b", tokens=50))).reason == "limit"
    await permits.settle(permit, Outcome(kind="answered", tokens=20))
    assert (await granted(permits, call("b", tokens=50))).number == 2


async def test_an_agent_s_limit_holds_for_its_runs_only() -> None:
    permits = InProcessPermits(clock=Clock())
    slow = replace(call(), agent="slow", rpm=1)
    await granted(permits, slow)
    assert (await refused(permits, slow)).reason == "limit"
    await granted(permits, replace(call("b"), agent="other"))


@dataclass(frozen=True)
class Takes:
    session: str
    caller: str
    tokens: int
    is_limited: bool
    insists: bool


@dataclass(frozen=True)
class Settles:
    which: int
    kind: OutcomeKind
    tokens: int | None
    retry_after: float | None


Step: TypeAlias = Takes | Settles | int
"""A number stands for milliseconds that pass."""

takes = st.builds(
    Takes,
    st.sampled_from(SESSIONS),
    st.sampled_from(("", "1", "2")),
    st.integers(1, 60),
    st.booleans(),
    st.sampled_from((False, False, True)),
)
settles = st.builds(
    Settles,
    st.integers(0, 5),
    st.sampled_from(("answered", "failed", "failed", "failed", "throttled", "unknown")),
    st.none() | st.integers(0, 80),
    st.none() | st.sampled_from((0.5, 20.0)),
)
passes = st.integers(1, 3000) | st.sampled_from((1, 5_000, 5_000, 60_000))
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(takes, takes, takes, settles, passes), min_size=30, max_size=80
)
rules = st.builds(
    PermitRules,
    failures=st.sampled_from((0, 1, 3)),
    longest_open=st.sampled_from((8.0, 60.0)),
    rpm=st.none() | st.integers(1, 6),
    tpm=st.none() | st.integers(20, 200),
)


async def perform(
    permits: Permits, clock: Clock, story: Sequence[Step], account: str
) -> list[tuple[int, Permit | Wait]]:
    """Return what each request got, and when."""
    got: list[tuple[int, Permit | Wait]] = []
    for step in story:
        clock.now += 1  # two requests at the same time may be ordered either way
        match step:
            case int():
                clock.now += step
            case Takes():
                own = {"agent": "x", "rpm": 3, "tpm": 90} if step.is_limited else {}
                caller = step.session + step.caller
                request = PermitRequest(
                    account=account,
                    model="openai:m",
                    session=step.session,
                    caller=caller,
                    tokens=step.tokens,
                    insists=step.insists,
                    **own,  # type: ignore[arg-type]
                )
                got.append((clock.now, await permits.take(request)))
            case Settles():
                held = [permit for _, permit in got if isinstance(permit, Permit)]
                if held:
                    outcome = Outcome(
                        kind=step.kind, tokens=step.tokens, retry_after=step.retry_after, because=f"failure {len(got)}"
                    )
                    await permits.settle(held[-1 - step.which % len(held)], outcome)
    return got


@given(rules=rules, story=steps)
@settings(max_examples=50)
def test_no_window_of_a_minute_contains_more_requests_than_the_limit(rules: PermitRules, story: list[Step]) -> None:
    got = asyncio.run(perform(InProcessPermits(rules, clock=(clock := Clock())), clock, story, "acc"))
    sent = [at for at, found in got if isinstance(found, Permit)]
    if rules.rpm is not None:
        assert all(sum(at - WINDOW_MS < other <= at for other in sent) <= rules.rpm for at in sent)


@given(rules=rules, story=steps)
@settings(max_examples=20)
def test_redis_decides_as_one_process_does(redis_url: str, rules: PermitRules, story: list[Step]) -> None:
    async def both() -> tuple[list[tuple[int, Permit | Wait]], list[tuple[int, Permit | Wait]]]:
        account = uuid4().hex[:8]
        own, shared = Clock(), Clock()
        alone = InProcessPermits(rules, clock=own)
        async with aclosing(RedisConnection(redis_url)) as link:
            in_redis = RedisPermits(link, rules, alone=InProcessPermits(rules), clock=shared)
            return await perform(alone, own, story, account), await perform(in_redis, shared, story, account)

    expected, got = asyncio.run(both())
    assert [(at, _unshared(found)) for at, found in got] == expected


def _unshared(found: Permit | Wait) -> Permit | Wait:
    return replace(found, is_shared=False) if isinstance(found, Permit) and found.is_shared else found
