"""Permits that workers share: several processes with one Redis, a Redis that goes away, and a provider that does."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from os import getpid
from typing import Any, Final
from uuid import uuid4

import pytest

from loom.activities.adapters.in_process_permits import InProcessPermits
from loom.activities.adapters.models.providers import ConfiguredProviders
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.permits import MOMENT, PermitState, RecentPermits, RedisPermits, read_states
from loom.activities.model_permits import Outcome, Permit, PermitRequest, PermitRules, Permits, Wait
from loom.activities.ports import ModelCall
from loom.composition.gauges import Breakers
from loom.domain.core import metrics
from loom.domain.core.errors import CircuitBreakerOpenError, LLMRateLimitError, LoomError, NoPermitError
from loom.domain.core.messages import user
from loom.domain.core.tasks import Origin
from loom.testing import model_server as served
from loom.testing.model_server import ModelServer, Reply, Script, SeenRequest
from loom.testing.waiting import eventually
from tests.seen_meters import SeenMeters

from .conftest import RedisServer

FAILED: Final = Outcome(kind="failed", because="LLMUnavailableError: away")
STOPPED: Final = round(time.time() * 1000) + 3_600_000
"""The time at which nearly all of these tests take place. It doesn't pass, however slow the machine is.

It is in the future, so that the state that Redis is asked for, with a clock of its own, doesn't end meanwhile.
"""


@asynccontextmanager
async def shared(
    redis_url: str, rules: PermitRules | None = None, clock: Callable[[], int] | None = lambda: STOPPED
) -> AsyncIterator[RedisPermits]:
    """The permits of one worker."""
    rules = rules or PermitRules()
    async with aclosing(RedisConnection(redis_url)) as link:
        yield RedisPermits(link, rules, alone=alone(rules), clock=clock)


def alone(rules: PermitRules | None = None) -> InProcessPermits:
    return InProcessPermits(rules, clock=lambda: STOPPED)


@asynccontextmanager
async def provider(script: Script, permits: Permits) -> AsyncIterator[Callable[..., Any]]:
    """A function that calls a scripted model, as a worker does for a run."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ModelServer(script))
        providers = ConfiguredProviders(permits, openai_base_url=server.openai_url)
        stack.push_async_callback(providers.aclose)

        async def ask(run_id: str = "run", **given: Any) -> str:
            model, name = providers.resolve("openai:m-1")
            call = ModelCall(model=name, system="", messages=(user("hi"),), origin=Origin(run_id=run_id), **given)
            return (await model.answer(call, lambda _: None)).message.text

        yield ask


def request(account: str, session: str = "a", **given: Any) -> PermitRequest:
    return replace(PermitRequest(account=account, model="openai:m", session=session, caller=session, tokens=1), **given)


async def states(redis_url: str, account: str) -> list[PermitState]:
    async with aclosing(RedisConnection(redis_url)) as link:
        return [each for each in await link.call(read_states) if each.account == account]


async def granted(permits: Permits, account: str, worker: object, count: int) -> int:
    """How many permits a worker gets that asks for so many."""
    asked = [request(account, f"run-{n % 7}", caller=f"{n} of {worker}") for n in range(count)]
    return sum([isinstance(await permits.take(each), Permit) for each in asked])


async def print_granted(url: str, account: str, now: int) -> None:
    """The same in a process of its own, at a time that all processes share."""
    async with shared(url, PermitRules(rpm=30), clock=lambda: now) as permits:
        sys.stdout.write(json.dumps(await granted(permits, account, getpid(), 40)))


async def test_a_worker_without_calls_measures_that_another_one_has_closed_the_breaker(redis_url: str) -> None:
    account, meters = uuid4().hex[:8], SeenMeters()
    model = f"openai:{account}"
    asked = replace(request(account), model=model)
    gauge = partial(meters.values, metrics.BREAKER_OPEN, "openai", account)
    async with shared(redis_url) as other, aclosing(RedisConnection(redis_url)) as link:
        breakers = Breakers(meters, link)
        for number in range(5):
            permit = await other.take(replace(asked, caller=str(number)))
            assert isinstance(permit, Permit)
            await other.settle(permit, FAILED)
        await breakers.read()
        assert gauge() == [1]
        probe = await other.take(replace(asked, insists=True))
        assert isinstance(probe, Permit)
        await other.settle(probe, Outcome(kind="answered"))
        await breakers.read()
        assert gauge() == [1, 0]


async def test_workers_share_one_limit(redis_url: str) -> None:
    account = uuid4().hex[:8]
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(shared(redis_url, PermitRules(rpm=30))) for _ in range(3)]
        got = await asyncio.gather(*(granted(permits, account, n, 40) for n, permits in enumerate(workers)))
    assert sum(got) == 30
    assert [(state.rpm, state.rpm_limit, state.waiting) for state in await states(redis_url, account)] == [(30, 30, 90)]


@pytest.mark.slow
async def test_processes_share_one_limit(redis_url: str) -> None:
    account = uuid4().hex[:8]
    given = f"{redis_url!r}, {account!r}, {STOPPED}"
    code = f"import asyncio; from {__name__} import print_granted; asyncio.run(print_granted({given}))"
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        for _ in range(3)
    ]
    printed = [(await process.communicate())[0] for process in started]
    assert sum(map(json.loads, printed)) == 30


async def test_workers_share_one_breaker(redis_url: str) -> None:
    account = uuid4().hex[:8]
    async with shared(redis_url) as one, shared(redis_url) as other:
        for permit in [await one.take(request(account)) for _ in range(5)]:
            assert isinstance(permit, Permit)
            await one.settle(permit, FAILED)
        found = await other.take(request(account))
    assert isinstance(found, Wait)
    assert (found.reason, found.because) == ("open", FAILED.because)
    assert found.seconds == 5
    (state,) = await states(redis_url, account)
    assert (state.model, state.state, state.failures, state.calls) == ("openai:m", "open", 5, 5)


class Busy:
    """A busy worker that shares permits with others, and its clock."""

    def __init__(self, others: Permits, rules: PermitRules | None = None) -> None:
        self.now = 0.0
        self.permits = RecentPermits(others, rules or PermitRules(), clock=lambda: self.now)

    async def got(self, account: str, **given: Any) -> bool:
        return isinstance(await self.permits.take(request(account, **given)), Permit)


async def fail(permits: Permits, account: str, times: int = 5, *, outcome: Outcome = FAILED) -> None:
    for number in range(times):
        permit = await permits.take(request(account, caller=str(number)))
        assert isinstance(permit, Permit)
        await permits.settle(permit, outcome)


async def test_a_busy_worker_learns_a_moment_later_that_another_one_has_opened_the_breaker(redis_url: str) -> None:
    account = uuid4().hex[:8]
    async with shared(redis_url) as other, shared(redis_url) as own:
        busy = Busy(own)
        assert await busy.got(account)
        await fail(other, account)
        busy.now = 0.9 * MOMENT
        late = await busy.permits.take(request(account))
        assert isinstance(late, Permit)
        busy.now = MOMENT
        assert not await busy.got(account)
        (before,) = await states(redis_url, account)
        await busy.permits.settle(late, FAILED)
        (after,) = await states(redis_url, account)
        assert after.seconds <= before.seconds, "a call that isn't a probe has opened the breaker anew"
        assert await busy.got(account, insists=True)  # as the probe


@pytest.mark.parametrize("outcome", [FAILED, Outcome(kind="throttled", retry_after=60)], ids=lambda each: each.kind)
async def test_a_busy_worker_counts_its_own_failures_at_once(redis_url: str, outcome: Outcome) -> None:
    account = uuid4().hex[:8]
    async with shared(redis_url) as own:
        busy = Busy(own)
        await fail(busy.permits, account, 5 if outcome is FAILED else 1, outcome=outcome)
        assert not await busy.got(account)


async def test_a_permit_that_probes_gives_no_others(redis_url: str) -> None:
    account = uuid4().hex[:8]
    async with shared(redis_url) as own:
        busy = Busy(own)
        await fail(own, account, 1, outcome=Outcome(kind="throttled", retry_after=60))
        assert await busy.got(account, insists=True)
        assert not await busy.got(account)


@pytest.mark.parametrize(("rules", "given"), [(PermitRules(rpm=3), {}), (PermitRules(), {"agent": "a", "rpm": 3})])
async def test_calls_under_a_limit_are_all_counted(redis_url: str, rules: PermitRules, given: dict[str, Any]) -> None:
    account = uuid4().hex[:8]
    async with shared(redis_url, rules) as own:
        busy = Busy(own, rules)
        got = [await busy.got(account, caller=str(number), **given) for number in range(5)]
        assert got == [True] * 3 + [False] * 2


async def test_an_agent_s_limit_has_its_own_line(redis_url: str) -> None:
    account = uuid4().hex[:8]
    async with shared(redis_url) as permits:
        for _ in range(2):
            await permits.take(request(account, agent="slow writer", rpm=1))
    whole, own = await states(redis_url, account)
    assert (whole.agent, whole.state, whole.rpm_limit) == ("", "closed", None)
    assert (own.agent, own.state, own.rpm, own.rpm_limit, own.waiting) == ("slow writer", "", 1, 1, 1)


async def test_without_redis_a_worker_counts_for_itself(mortal_redis: RedisServer) -> None:
    async with shared(mortal_redis.url, PermitRules(rpm=2)) as permits:
        before = await permits.take(request("acc"))
        mortal_redis.kill()
        assert isinstance(before, Permit)
        await permits.settle(before, FAILED)
        found = [await permits.take(request("acc")) for _ in range(3)]
    assert [isinstance(each, Permit) for each in found] == [True, True, False]


@pytest.mark.parametrize(
    ("reply", "counts"),
    [
        (served.status(500), True),
        (served.status(503), True),
        (served.status(529), True),
        (served.cut_after(2), True),
        (served.garbage(), True),
        (served.status(400), False),
        (served.status(401), False),
        (served.status(404), False),
        (served.context_length(), False),
        (served.refusal(), False),
    ],
)
async def test_only_failures_of_the_provider_open_the_breaker(reply: Reply, counts: bool) -> None:
    async with provider(lambda _: reply, alone()) as ask:
        for _ in range(5):
            with pytest.raises(LoomError) as caught:
                await ask()
            assert not isinstance(caught.value, CircuitBreakerOpenError)
        with pytest.raises(LoomError) as caught:
            await ask()
    assert isinstance(caught.value, CircuitBreakerOpenError) == counts


async def test_an_open_breaker_says_which_model_fails_why_and_when_to_come_back() -> None:
    async with provider(lambda _: served.status(503, message="overloaded"), alone()) as ask:
        for _ in range(5):
            with pytest.raises(LoomError):
                await ask()
        with pytest.raises(CircuitBreakerOpenError) as caught:
            await ask()
    context = caught.value.context
    assert (context["provider"], context["model"]) == ("openai", "openai:m-1")
    assert context["retry_after"] == 5
    assert context["because"] == "LLMUnavailableError: the OpenAI-compatible server failed (503): overloaded"
    assert context["because"] in caught.value.message


async def test_all_runs_wait_as_long_as_the_provider_asked_one_of_them() -> None:
    replies = served.script([served.status(429, retry_after=20), served.text("ok")])
    async with provider(replies, alone()) as ask:
        with pytest.raises(LLMRateLimitError):
            await ask("one")
        with pytest.raises(LLMRateLimitError) as caught:
            await ask("other")
    assert caught.value.context["retry_after"] == 20


async def test_a_call_beyond_the_limit_is_told_when_to_come_back() -> None:
    async with provider(lambda _: served.text("ok"), alone(PermitRules(rpm=1))) as ask:
        await ask("one")
        with pytest.raises(NoPermitError) as caught:
            await ask("other")
    assert caught.value.context["retry_after"] == 60


async def test_a_short_wait_is_spent_in_the_activity() -> None:
    replies = served.script([served.status(429, retry_after=0.3), served.text("ok")])
    async with provider(replies, InProcessPermits()) as ask:
        with pytest.raises(LLMRateLimitError):
            await ask("one")
        assert await ask("other") == "ok"


async def test_tokens_are_counted_as_the_provider_reports_them(redis_url: str) -> None:
    tpm = 100_000 + uuid4().int % 100_000  # by which the state of this test is found

    async def counted() -> int:
        async with aclosing(RedisConnection(redis_url)) as link:
            return sum(each.tpm for each in await link.call(read_states) if each.tpm_limit == tpm)

    async def settled() -> bool:
        return 0 < await counted() < 1000

    async with (
        shared(redis_url, PermitRules(tpm=tpm)) as permits,
        provider(lambda _: served.text("ok"), permits) as ask,
    ):
        await ask(max_output_tokens=4000)
        await eventually(settled)  # the answer doesn't wait for it


class WatchedPermits:
    """The permits of a worker, which count the probes."""

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self.probes = 0

    async def take(self, request: PermitRequest) -> Permit | Wait:
        found = await self._permits.take(request)
        self.probes += isinstance(found, Permit) and found.probes
        return found

    async def settle(self, permit: Permit, outcome: Outcome) -> None:
        await self._permits.settle(permit, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("callers", [10, 50])
async def test_many_callers_send_few_probes_and_go_on_one_after_the_other(redis_url: str, callers: int) -> None:
    """With sleeps. `test_model_permits` proves the same of a clock that it sets."""
    probed: list[float] = []
    answered: list[float] = []

    def reply(_: SeenRequest) -> Reply:
        if watched.probes < 2:  # the provider is back after one probe in vain
            probed.extend([time.monotonic()] * watched.probes)
            return served.status(503)
        answered.append(time.monotonic())
        return served.text("ok")

    async def until_answered(ask: Callable[..., Any], run_id: str) -> None:
        while True:
            try:
                await ask(run_id)
            except CircuitBreakerOpenError as error:
                await asyncio.sleep(error.context["retry_after"])
            except LoomError:
                await asyncio.sleep(1)
            else:
                return

    async with shared(redis_url, clock=None) as permits:
        watched = WatchedPermits(permits)
        async with provider(reply, watched) as ask:
            await asyncio.gather(*(until_answered(ask, f"run-{n}") for n in range(callers)))
    assert (watched.probes, len(probed), len(answered)) == (2, 1, callers)
    assert answered[0] - probed[0] >= 9.5
    assert answered[-1] - answered[0] > 0.2 * callers
