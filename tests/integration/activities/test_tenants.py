"""Tenants' limits: how many runs are in progress, and what they use in a day."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.models.prices import GenaiPrices
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.tenants import PostgresTenants
from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta
from loom.activities.tenants.gate import TenantGate
from loom.activities.tenants.metered import MeteredProviders
from loom.activities.tenants.one_worker import OneWorkerTenants
from loom.domain.core.errors import BudgetExceededError, LLMUnavailableError
from loom.domain.core.messages import Message, Usage, user
from loom.domain.core.requests import ModelOptions
from loom.domain.core.tasks import Origin
from loom.domain.core.tenants import TenantLimits
from loom.domain.tree.budget import Spend
from loom.testing.harness import Addresses

RUNS: Final = tuple(f"run-{number}" for number in range(6))
STEPS: Final = st.lists(st.tuples(st.sampled_from(["begins", "ends", "dies"]), st.sampled_from(RUNS)), max_size=30)
TODAY: Final = datetime.now(UTC).date()


@dataclass
class Server:
    """The runs on a server: `WaitingRuns` for a gate."""

    running: set[str] = field(default_factory=set)
    woken: list[str] = field(default_factory=list)

    async def wake(self, run_id: str) -> bool:
        if run_id not in self.running:
            return False
        self.woken.append(run_id)
        return True

    async def is_running(self, run_id: str) -> bool:
        return run_id in self.running


class Tenant:
    """The runs of one tenant behind a gate, and what each of them is told."""

    def __init__(self, most: int) -> None:
        self._server = Server()
        self._gate = TenantGate(
            limits={"acme": TenantLimits(runs=most)}, queue=OneWorkerTenants(checked_for=0), runs=self._server
        )
        self._admitted: set[str] = set()

    @property
    def admitted(self) -> set[str]:
        return (self._admitted | set(self._server.woken)) & self._server.running

    @property
    def waiting(self) -> set[str]:
        return self._server.running - self.admitted

    async def begins(self, run: str) -> None:
        """A run is prepared, or a waiting one looks again."""
        self._server.running.add(run)
        if await self._gate.admission(origin(run)) == "admitted":
            self._admitted.add(run)

    async def ends(self, run: str) -> None:
        await self.dies(run)
        await self._gate.leave_tenant(origin(run))

    async def dies(self, run: str) -> None:
        """The server ends a run, and nobody tells the gate."""
        self._admitted = self.admitted - {run}
        self._server.woken.clear()
        self._server.running.discard(run)


def origin(run: str) -> Origin:
    return Origin(run_id=run, tenant="acme")


@given(steps=STEPS, most=st.integers(min_value=1, max_value=3))
@example(
    steps=[
        ("begins", "run-0"),
        ("begins", "run-1"),
        ("begins", "run-2"),
        ("dies", "run-2"),
        ("ends", "run-0"),
        ("begins", "run-3"),
        ("begins", "run-2"),
    ],
    most=2,
)
@settings(deadline=None)
async def test_no_more_runs_than_allowed_are_in_progress_and_none_waits_for_ever(
    steps: Sequence[tuple[str, str]], most: int
) -> None:
    tenant = Tenant(most)
    for step, run in steps:
        await getattr(tenant, step)(run)
        assert len(tenant.admitted) <= most

    while left := tenant.admitted | tenant.waiting:
        for run in sorted(tenant.waiting):
            await tenant.begins(run)
        assert len(tenant.admitted) == min(most, len(left))
        for run in sorted(tenant.admitted):
            await tenant.ends(run)


async def test_sub_agents_and_unlimited_tenants_do_not_wait() -> None:
    gate = TenantGate(limits={"acme": TenantLimits(runs=1)}, queue=OneWorkerTenants(), runs=Server())

    async def admission(**origin: Any) -> str:
        return await gate.admission(Origin(**origin))

    assert await admission(run_id="a", tenant="acme") == "admitted"
    assert await admission(run_id="b", tenant="acme") == "waiting"
    assert await admission(run_id="a/d1-1", root_run_id="a", tenant="acme") == ""
    assert await admission(run_id="c", tenant="other") == ""


@given(
    steps=st.lists(
        st.tuples(st.none() | st.sampled_from(RUNS), st.sets(st.sampled_from(RUNS), max_size=2), st.integers(0, 3)),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_postgres_queues_runs_as_one_worker_does(
    addresses: Addresses, steps: Sequence[tuple[str | None, set[str], int]]
) -> None:
    tenant, alone = f"t-{uuid4().hex}", OneWorkerTenants()
    async with postgres(addresses) as shared:
        for joins, leaves, most in steps:
            own = [f"{tenant}/{run}" for run in sorted(leaves)]
            run = joins and f"{tenant}/{joins}"
            ours = await shared.advance(tenant, most, joins=run, leaves=own)
            theirs = await alone.advance(tenant, most, joins=run, leaves=own)
            assert (ours.admitted, set(ours.newly)) == (theirs.admitted, set(theirs.newly))
        assert await shared.unchecked(tenant) == await alone.unchecked(tenant) == []


async def test_workers_count_together_in_postgres(addresses: Addresses) -> None:
    tenant = f"t-{uuid4().hex}"
    async with postgres(addresses) as one, postgres(addresses) as two:
        changes = await asyncio.gather(
            *((one, two)[n % 2].advance(tenant, 3, joins=f"{tenant}/{n}") for n in range(20))
        )
        assert sum(len(change.newly) for change in changes) == 3
        await asyncio.gather(*((one, two)[n % 2].charge(tenant, TODAY, Spend(tokens=7, micros=3)) for n in range(20)))
        assert await one.used(tenant, TODAY) == Spend(tokens=140, micros=60)


@asynccontextmanager
async def postgres(addresses: Addresses) -> AsyncIterator[PostgresTenants]:
    """A worker's connection to the tests' database."""
    async with aclosing(Database(addresses.database, max_connections=4)) as database:
        yield PostgresTenants(database)


class Talker:
    """A provider whose replies have these lengths, or as many tokens as are allowed.

    None: it fails. A negative length: the reply breaks off after so many tokens.
    """

    def __init__(self, lengths: Sequence[int | None]) -> None:
        self._lengths = list(lengths)
        self.used = 0

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        await asyncio.sleep(0)  # other calls begin meanwhile
        length = self._lengths.pop()
        if length is None:
            raise LLMUnavailableError("overloaded")
        usage = Usage(input_tokens=1, output_tokens=min(abs(length), call.max_output_tokens), model_calls=1)
        self.used += usage.total_tokens
        if length < 0:
            error = LLMUnavailableError("broke off")
            error.used = usage
            raise error
        return ModelAnswer(message=Message(role="assistant", content="ok"), stop="end", usage=usage)

    def check_options(self, model: str, options: ModelOptions) -> None:
        pass

    def resolve(self, model: str) -> tuple[LLMProvider, str]:
        return self, model


@given(
    lengths=st.lists(st.none() | st.integers(1, 3000) | st.integers(-3000, -1), min_size=1, max_size=12),
    limit=st.integers(1, 20_000),
    at_once=st.booleans(),
)
@settings(deadline=None)
async def test_a_tenants_calls_never_use_more_than_its_limit(
    lengths: list[int | None], limit: int, at_once: bool
) -> None:
    talker, accounts = Talker(lengths), OneWorkerTenants()
    providers = MeteredProviders(
        talker, limits={"default": TenantLimits(tokens_per_day=limit)}, accounts=accounts, prices=GenaiPrices()
    )
    provider, _ = providers.resolve("demo")
    call = ModelCall(model="demo", system="", messages=(user("hello"),), max_output_tokens=2000, origin=origin("run"))
    calls = [provider.answer(call, lambda _: None) for _ in lengths]
    if at_once:
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    else:
        outcomes = [(await asyncio.gather(each, return_exceptions=True))[0] for each in calls]

    assert talker.used <= limit
    assert (await accounts.used("acme", TODAY)).tokens == talker.used
    refused = [outcome for outcome in outcomes if isinstance(outcome, BudgetExceededError)]
    assert all(error.context == {"tenant": "acme", "limit": "tokens_per_day"} for error in refused)
    assert {type(outcome) for outcome in outcomes} <= {ModelAnswer, BudgetExceededError, LLMUnavailableError}


async def test_only_the_tenant_that_pays_is_limited() -> None:
    talker, accounts = Talker([5, 5, 5]), OneWorkerTenants()
    limits = {"acme": TenantLimits(usd_per_day=0.000001)}
    providers = MeteredProviders(talker, limits=limits, accounts=accounts, prices=GenaiPrices())
    provider, _ = providers.resolve("openai:gpt-4o-mini")

    def call(tenant: str) -> ModelCall:
        paid_by = Origin(run_id="run", tenant=tenant)
        return ModelCall(model="gpt-4o-mini", system="", messages=(user("hello"),), origin=paid_by)

    await provider.answer(call("other"), lambda _: None)
    await provider.answer(call(""), lambda _: None)
    with pytest.raises(BudgetExceededError, match=r"'acme' has \$0.0000 of \$1e-06 left today, .* `usd_per_day`"):
        await provider.answer(call("acme"), lambda _: None)
