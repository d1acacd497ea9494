"""A lease tells whether an attempt is alive: the next one waits for it, takes its result, or takes its place."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from uuid import uuid4

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import ActivityEnvironment

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import LEASE, PostgresEffects
from loom.activities.adapters.sandbox.worker_beat import INTERVAL, LIMIT
from loom.activities.effects import Effects
from loom.activities.leases import RENEWAL, Leases, outlasting
from loom.activities.ports import Claim, StoreUnavailable
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, failed
from loom.domain.machine.activity_requests import idempotency_key
from loom.domain.machine.tool_results import UNKNOWN_OUTCOME
from loom.domain.run.activity_payloads import ToolRequest
from loom.testing.harness import Addresses
from loom.testing.waiting import eventually
from tests.activities.conftest import PostgresServer
from tests.databases import rows

GIVEN_UP = ActivityCancellationDetails(not_found=True)
LONGER_THAN_A_LEASE = LEASE.total_seconds() + 1


@pytest.fixture
async def ledger(addresses: Addresses) -> AsyncIterator[PostgresEffects]:
    database = Database(addresses.database)
    yield PostgresEffects(database)
    await database.aclose()


def test_a_frozen_worker_loses_its_commands_before_another_attempt_begins() -> None:
    assert LEASE.total_seconds() > LIMIT + INTERVAL


# ---- leases in the ledger --------------------------------------------------------------------------------------


def claim(attempt: int = 1) -> Claim:
    return Claim(key=f"run/x/t1/{uuid4().hex}", run_id="run", attempt=attempt)


async def test_a_claim_is_alive_until_its_lease_ends_unless_it_is_renewed(ledger: PostgresEffects) -> None:
    dead, alive = claim(), claim()
    for each in (dead, alive):
        await ledger.reserve(each.key, each.run_id, each.attempt)
        assert await ledger.is_alive(each.key)

    until = monotonic() + LONGER_THAN_A_LEASE
    while monotonic() < until:
        assert await ledger.renew([alive]) == {alive.key}
        await asyncio.sleep(RENEWAL)

    assert [await ledger.is_alive(each.key) for each in (dead, alive)] == [False, True]


async def test_a_call_that_has_ended_or_that_nobody_has_claimed_is_not_alive(ledger: PostgresEffects) -> None:
    finished, released, unclaimed = claim(), claim(), claim()
    for each in (finished, released):
        await ledger.reserve(each.key, each.run_id, each.attempt)
    await ledger.finish(finished.key, finished.attempt, ToolResult(content="done"))
    await ledger.release(released)
    assert not await ledger.is_alive(finished.key, released.key, unclaimed.key)


async def test_a_renewal_claims_what_nobody_has_claimed_and_nothing_that_a_later_attempt_holds(
    ledger: PostgresEffects,
) -> None:
    new, mine, taken = claim(), claim(), claim()
    await ledger.reserve(mine.key, "run", 1)
    await ledger.reserve(taken.key, "run", 2)
    assert await ledger.renew([new, mine, taken]) == {new.key, mine.key}
    assert await ledger.reserve(new.key, "run", 2) == 1


async def test_an_earlier_attempt_can_not_release_the_claim_of_a_later_one(ledger: PostgresEffects) -> None:
    first = claim()
    await ledger.reserve(first.key, "run", 1)
    await ledger.reserve(first.key, "run", 2)
    await ledger.release(first)
    assert await ledger.is_alive(first.key)


async def test_a_clock_that_is_set_back_keeps_no_dead_attempt_alive(
    ledger: PostgresEffects, addresses: Addresses
) -> None:
    first = claim()
    await ledger.reserve(first.key, "run", 1)
    await rows(
        addresses.database,
        "UPDATE loom_effects SET alive_until = alive_until + interval '1 hour' WHERE key = %s RETURNING key",
        (first.key,),
    )
    assert not await ledger.is_alive(first.key)
    await ledger.renew([first])
    assert await ledger.is_alive(first.key)


async def test_a_worker_that_stands_still_keeps_the_result_for_the_attempt_that_replaces_its_own(
    ledger: PostgresEffects,
) -> None:
    first, leases = claim(), Leases(ledger)

    async def work() -> ToolResult:
        time.sleep(RENEWAL + 0.1)
        return ToolResult(content="done")

    assert await leases.recorded(first, work) == ToolResult(content="done")
    assert await leases.found(replace(first, attempt=2)) == ToolResult(content="done")


async def test_the_ledger_does_not_hear_of_a_quick_call(ledger: PostgresEffects) -> None:
    first, leases = claim(), Leases(ledger)

    async def work() -> ToolResult:
        return ToolResult(content="done")

    await leases.recorded(first, work)
    assert await leases.found(replace(first, attempt=2)) is None


# ---- two attempts at a tool call -------------------------------------------------------------------------------


class Work:
    """Something that takes as long as a test wants."""

    def __init__(self) -> None:
        self.times = 0
        self.may_end = asyncio.Event()
        self.was_stopped = False

    async def __call__(self, _: str) -> ToolResult:
        self.times += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_stopped = True
            raise
        return ToolResult(content=f"done {self.times}")


def request(effect: Effect, *, run: str, attempt: int = 1) -> ToolRequest:
    origin = Origin(run_id=run)
    return ToolRequest(
        origin=origin, turn=1, attempt=attempt, call_id="c", tool="bash", effect=effect, begun=attempt > 1
    )


async def attempted(
    effects: Effects, made: ToolRequest, work: Work, environment: ActivityEnvironment | None = None
) -> ToolResult:
    """One attempt, as the `run_tool` activity makes it."""

    async def attempt() -> ToolResult:
        if made.begun:
            await effects.earlier_ended(made)
        return await effects.carried_out(made, Scope.CONTEXT, work, warn=lambda _: None)

    result: ToolResult = await (environment or ActivityEnvironment()).run(attempt)
    return result


@pytest.mark.parametrize("effect", Effect)
async def test_the_next_attempt_waits_for_one_that_is_alive_and_takes_its_result(
    ledger: PostgresEffects, effect: Effect
) -> None:
    run, work, here, elsewhere = uuid4().hex, Work(), Effects(ledger=ledger), Effects(ledger=ledger)
    first = asyncio.create_task(attempted(here, request(effect, run=run), work))
    await eventually(lambda: ledger.is_alive(idempotency_key(request(effect, run=run))))
    second = asyncio.create_task(attempted(elsewhere, request(effect, run=run, attempt=2), work))

    await asyncio.sleep(LONGER_THAN_A_LEASE)
    assert not second.done()
    work.may_end.set()

    assert await first == await second == ToolResult(content="done 1")
    assert work.times == 1


@pytest.mark.parametrize(
    ("effect", "result"),
    [
        (Effect.ONCE, failed(UNKNOWN_OUTCOME, "lost")),
        (Effect.IDEMPOTENT, ToolResult(content="done 1")),
        (Effect.READ, ToolResult(content="done 1")),
    ],
)
async def test_the_next_attempt_takes_the_place_of_one_whose_worker_is_dead(
    ledger: PostgresEffects, effect: Effect, result: ToolResult
) -> None:
    lost, work = request(effect, run=uuid4().hex), Work()
    await ledger.reserve(idempotency_key(lost), lost.origin.run_id, 1)
    work.may_end.set()
    began = monotonic()
    assert await attempted(Effects(ledger=ledger), replace(lost, attempt=2, begun=True), work) == result
    assert monotonic() - began < LEASE.total_seconds() + 20


async def test_a_run_that_stops_the_waiting_attempt_ends_the_one_that_is_alive(ledger: PostgresEffects) -> None:
    run, work, effects = uuid4().hex, Work(), Effects(ledger=ledger)
    first = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run), work))
    await eventually(lambda: ledger.is_alive(idempotency_key(request(Effect.ONCE, run=run))))
    waiting = ActivityEnvironment()
    second = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run, attempt=2), work, waiting))
    await asyncio.sleep(RENEWAL)

    waiting.cancel(ActivityCancellationDetails(cancel_requested=True))
    with pytest.raises(asyncio.CancelledError):
        await second
    assert work.was_stopped
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.parametrize("why", [GIVEN_UP, ActivityCancellationDetails(worker_shutdown=True)], ids=str)
async def test_a_waiting_attempt_that_nobody_stopped_leaves_the_one_that_is_alive_alone(
    ledger: PostgresEffects, why: ActivityCancellationDetails
) -> None:
    run, work, effects = uuid4().hex, Work(), Effects(ledger=ledger)
    first = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run), work))
    await eventually(lambda: ledger.is_alive(idempotency_key(request(Effect.ONCE, run=run))))
    waiting = ActivityEnvironment()
    second = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run, attempt=2), work, waiting))
    await asyncio.sleep(RENEWAL)

    waiting.cancel(why)
    with pytest.raises(asyncio.CancelledError):
        await second
    await asyncio.sleep(2 * RENEWAL)
    work.may_end.set()
    assert (await first).content == "done 1"


async def test_after_a_restart_of_postgres_workers_have_time_to_renew_their_leases(postgres: PostgresServer) -> None:
    database, first = Database(postgres.url), claim()
    ledger = PostgresEffects(database)
    await ledger.reserve(first.key, "run", 1)
    await postgres.stop()
    await asyncio.sleep(LONGER_THAN_A_LEASE)
    await postgres.start()
    assert await eventually(lambda: _alive_again(ledger, first))
    await asyncio.sleep(LONGER_THAN_A_LEASE)
    assert not await ledger.is_alive(first.key)
    await database.aclose()


async def _alive_again(ledger: PostgresEffects, of: Claim) -> bool | None:
    try:
        return await ledger.is_alive(of.key)
    except StoreUnavailable:
        return None


async def test_a_short_call_that_only_reads_leaves_nothing_in_the_ledger(ledger: PostgresEffects) -> None:
    made, work = request(Effect.READ, run=uuid4().hex), Work()
    work.may_end.set()
    assert (await attempted(Effects(ledger=ledger), made, work)).content == "done 1"
    assert await ledger.find(idempotency_key(made)) is None


async def test_a_long_call_that_only_reads_does_not_depend_on_the_ledger() -> None:
    database, work = Database("postgresql://nobody@127.0.0.1:9/none"), Work()
    effects = Effects(ledger=PostgresEffects(database))
    made = request(Effect.READ, run="r", attempt=2)
    reading = asyncio.create_task(attempted(effects, made, work))
    await eventually(lambda: _began(work))
    await asyncio.sleep(3 * RENEWAL)
    work.may_end.set()
    assert (await reading).content == "done 1"
    await database.aclose()


async def _began(work: Work) -> bool:
    return work.times > 0


async def test_one_statement_renews_the_leases_of_all_calls(ledger: PostgresEffects) -> None:
    leases, claims, may_end = Leases(ledger), [claim() for _ in range(50)], asyncio.Event()

    async def call(of: Claim) -> bool:
        with leases.held(of) as lease:
            await may_end.wait()
            return lease.is_recorded

    calls = [asyncio.create_task(call(each)) for each in claims]
    await asyncio.sleep(3 * RENEWAL)
    assert all([await ledger.is_alive(each.key) for each in claims])
    may_end.set()
    assert all(await asyncio.gather(*calls))


async def test_of_two_attempts_on_one_worker_the_later_one_stays(ledger: PostgresEffects) -> None:
    leases, first, may_end = Leases(ledger), claim(), asyncio.Event()

    async def call(of: Claim) -> None:
        with leases.held(of):
            await may_end.wait()

    calls = [asyncio.create_task(call(replace(first, attempt=attempt))) for attempt in (2, 1)]
    await asyncio.sleep(3 * RENEWAL)
    assert [task.cancelled() for task in calls] == [False, True]
    may_end.set()
    await calls[0]


# ---- an attempt that Temporal has given up ---------------------------------------------------------------------


@pytest.fixture
async def run(addresses: Addresses) -> AsyncIterator[WorkflowHandle[object, object]]:
    """A run that goes on, because no worker serves it."""
    client = await Client.connect(addresses.temporal)
    handle = await client.start_workflow("Waiting", id=f"test-{uuid4().hex[:8]}", task_queue="nobody")
    yield handle
    if (await handle.describe()).close_time is None:
        await handle.terminate()


def activity_of(run: WorkflowHandle[object, object], *, within: float = 60.0) -> ActivityEnvironment:
    environment = ActivityEnvironment(client=run._client)
    limit = timedelta(seconds=within)
    environment.info = replace(
        environment.info, workflow_id=run.id, workflow_run_id=run.result_run_id, start_to_close_timeout=limit
    )
    return environment


async def begun(environment: ActivityEnvironment, work: Work) -> asyncio.Task[ToolResult]:
    async def attempt() -> ToolResult:
        return await outlasting(work(""))

    task = asyncio.create_task(environment.run(attempt))
    await eventually(lambda: _began(work))
    return task


async def test_work_goes_on_if_only_its_attempt_is_given_up(run: WorkflowHandle[object, object]) -> None:
    environment, work = activity_of(run), Work()
    attempt = await begun(environment, work)
    environment.cancel(GIVEN_UP)
    await asyncio.sleep(2)
    work.may_end.set()
    assert (await attempt).content == "done 1"


async def test_work_ends_if_its_run_stops_it(run: WorkflowHandle[object, object]) -> None:
    environment, work = activity_of(run), Work()
    attempt = await begun(environment, work)
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert work.was_stopped


async def test_work_that_was_given_up_ends_with_its_run(run: WorkflowHandle[object, object]) -> None:
    environment, work = activity_of(run), Work()
    attempt = await begun(environment, work)
    await run.terminate()
    environment.cancel(GIVEN_UP)
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert work.was_stopped


async def test_work_that_was_given_up_ends_when_its_time_is_up(run: WorkflowHandle[object, object]) -> None:
    environment, work = activity_of(run, within=1), Work()
    attempt = await begun(environment, work)
    environment.cancel(ActivityCancellationDetails(not_found=True, timed_out=True))
    with pytest.raises(asyncio.CancelledError):
        await attempt


async def test_an_error_of_the_work_is_the_error_of_the_attempt(run: WorkflowHandle[object, object]) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def attempt() -> None:
        await outlasting(fail())

    with pytest.raises(ValueError, match="broken"):
        await activity_of(run).run(attempt)
