"""Permits that workers share: several processes with one Redis, a Redis that goes away, and a provider that does."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from os import getpid
from typing import Any, Final
from uuid import uuid4

import pytest

from loom.activities.adapters.in_process_permits import InProcessPermits
from loom.activities.adapters.models.providers import ConfiguredProviders
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.permits import PermitState, RedisPermits, read_states
from loom.activities.model_permits import Outcome, Permit, PermitRequest, PermitRules, Permits, Wait
from loom.activities.ports import ModelCall
from loom.domain.core.errors import CircuitBreakerOpenError, LLMRateLimitError, LoomError, NoPermitError
from loom.domain.core.messages import user
from loom.domain.core.tasks import Origin
from loom.testing import model_server as served
from loom.testing.model_server import ModelServer, Reply, Script, SeenRequest

from .conftest import RedisServer

FAILED: Final = Outcome(kind="failed", because="LLMUnavailableError: away")


@asynccontextmanager
async def shared(redis_url: str, rules: PermitRules | None = None) -> AsyncIterator[RedisPermits]:
    """The permits of one worker."""
    link = RedisConnection(redis_url)
    rules = rules or PermitRules()
    yield RedisPermits(link, rules, alone=InProcessPermits(rules))
    await link.aclose()


@asynccontextmanager
async def provider(script: Script, permits: Permits) -> AsyncIterator[Callable[..., Any]]:
    """A function that calls a scripted model, as a worker does for a run."""
    async with ModelServer(script) as server:
        providers = ConfiguredProviders(permits, openai_base_url=server.openai_url)

        async def ask(run_id: str = "run", **given: Any) -> str:
            model, name = providers.resolve("openai:m-1")
            call = ModelCall(model=name, system="", messages=(user("hi"),), origin=Origin(run_id=run_id), **given)
            return (await model.answer(call, lambda _: None)).message.text

        yield ask
        await providers.aclose()


def request(account: str, session: str = "a", **given: Any) -> PermitRequest:
    return replace(PermitRequest(account=account, model="openai:m", session=session, caller=session, tokens=1), **given)


async def states(redis_url: str, account: str) -> list[PermitState]:
    link = RedisConnection(redis_url)
    try:
        return [each for each in await link.call(read_states) if each.account == account]
    finally:
        await link.aclose()


async def take_all(url: str, account: str, count: int) -> None:
    """Ask for permits and print how many were granted."""
    async with shared(url, PermitRules(rpm=30)) as permits:
        found = [
            await permits.take(request(account, f"run-{n % 7}", caller=f"{n} of {getpid()}")) for n in range(count)
        ]
    sys.stdout.write(json.dumps(sum(isinstance(each, Permit) for each in found)))


async def test_processes_share_one_limit(redis_url: str) -> None:
    account = uuid4().hex[:8]
    code = f"import asyncio; from {__name__} import take_all; asyncio.run(take_all({redis_url!r}, {account!r}, 40))"
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        for _ in range(3)
    ]
    printed = [(await process.communicate())[0] for process in started]
    assert sum(map(json.loads, printed)) == 30
    assert [(state.rpm, state.rpm_limit, state.waiting) for state in await states(redis_url, account)] == [(30, 30, 90)]


async def test_workers_share_one_breaker(redis_url: str) -> None:
    account = uuid4().hex[:8]
    async with shared(redis_url) as one, shared(redis_url) as other:
        for permit in [await one.take(request(account)) for _ in range(5)]:
            assert isinstance(permit, Permit)
            await one.settle(permit, FAILED)
        found = await other.take(request(account))
    assert isinstance(found, Wait)
    assert (found.reason, found.because) == ("open", FAILED.because)
    assert 4 < found.seconds <= 5
    (state,) = await states(redis_url, account)
    assert (state.model, state.state, state.failures, state.calls) == ("openai:m", "open", 5, 5)


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
    async with provider(lambda _: reply, InProcessPermits()) as ask:
        for _ in range(5):
            with pytest.raises(LoomError) as caught:
                await ask()
            assert not isinstance(caught.value, CircuitBreakerOpenError)
        with pytest.raises(LoomError) as caught:
            await ask()
    assert isinstance(caught.value, CircuitBreakerOpenError) == counts


async def test_an_open_breaker_says_which_model_fails_why_and_when_to_come_back() -> None:
    async with provider(lambda _: served.status(503, message="overloaded"), InProcessPermits()) as ask:
        for _ in range(5):
            with pytest.raises(LoomError):
                await ask()
        with pytest.raises(CircuitBreakerOpenError) as caught:
            await ask()
    context = caught.value.context
    assert (context["provider"], context["model"]) == ("openai", "openai:m-1")
    assert 4 < context["retry_after"] <= 5
    assert context["because"] == "LLMUnavailableError: the OpenAI-compatible server failed (503): overloaded"
    assert context["because"] in caught.value.message


async def test_all_runs_wait_as_long_as_the_provider_asked_one_of_them() -> None:
    replies = served.script([served.status(429, retry_after=20), served.text("ok")])
    async with provider(replies, InProcessPermits()) as ask:
        with pytest.raises(LLMRateLimitError):
            await ask("one")
        with pytest.raises(LLMRateLimitError) as caught:
            await ask("other")
    assert 19 < caught.value.context["retry_after"] <= 20


async def test_a_call_beyond_the_limit_is_told_when_to_come_back() -> None:
    async with provider(lambda _: served.text("ok"), InProcessPermits(PermitRules(rpm=1))) as ask:
        await ask("one")
        with pytest.raises(NoPermitError) as caught:
            await ask("other")
    assert 50 < caught.value.context["retry_after"] <= 60


async def test_a_short_wait_is_spent_in_the_activity() -> None:
    replies = served.script([served.status(429, retry_after=0.3), served.text("ok")])
    async with provider(replies, InProcessPermits()) as ask:
        with pytest.raises(LLMRateLimitError):
            await ask("one")
        assert await ask("other") == "ok"


async def test_tokens_are_counted_as_the_provider_reports_them(redis_url: str) -> None:
    async with (
        shared(redis_url, PermitRules(tpm=100_000)) as permits,
        provider(lambda _: served.text("ok"), permits) as ask,
    ):
        await ask(max_output_tokens=4000)
    link = RedisConnection(redis_url)
    (state,) = [each for each in await link.call(read_states) if each.tpm_limit == 100_000]
    await link.aclose()
    assert 0 < state.tpm < 1000


@pytest.mark.parametrize("callers", [10, pytest.param(50, marks=pytest.mark.slow)])
async def test_many_callers_send_few_probes_and_go_on_one_after_the_other(redis_url: str, callers: int) -> None:
    seen: list[float] = []

    def is_back(at: float) -> bool:
        return at > seen[0] + 7

    def reply(_: SeenRequest) -> Reply:
        seen.append(time.monotonic())
        return served.text("ok") if is_back(seen[-1]) else served.status(503)

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

    async with shared(redis_url) as permits, provider(reply, permits) as ask:
        await asyncio.gather(*(until_answered(ask, f"run-{n}") for n in range(callers)))
    answered = [at for at in seen if is_back(at)]
    probes = [at for at in seen if seen[0] + 2 < at and not is_back(at)]
    assert (len(probes), len(answered)) == (1, callers)
    assert answered[0] - probes[0] >= 9.5
    assert 0.2 * callers < answered[-1] - answered[0] < callers
