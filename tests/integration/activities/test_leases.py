"""A lease tells whether an attempt is alive: the next one waits for it, takes its result, or takes its place."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
import structlog
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from loom.activities import leases as renewals
from loom.activities.adapters.postgres import effects as postgres_effects
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import LEASE, STANDSTILL, PostgresEffects
from loom.activities.adapters.sandbox.worker_beat import INTERVAL, LIMIT, PAUSE
from loom.activities.effects import Effects
from loom.activities.leases import RENEWAL, Leases, outlasting
from loom.activities.ports import Claim, StoreUnavailable
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect, Scope, ToolResult, failed
from loom.domain.machine.activity_requests import idempotency_key
from loom.domain.machine.tool_results import UNKNOWN_OUTCOME, stopped_outcome
from loom.domain.run.activity_payloads import ToolRequest
from loom.testing.harness import Addresses
from loom.testing.waiting import PATIENCE, eventually
from tests.databases import rows
from tests.integration.activities.conftest import PostgresServer

GIVEN_UP = ActivityCancellationDetails(not_found=True)
LONG: Final = timedelta(hours=1)
"""A lease that ends when a test says that time passes, however slow the machine is."""
IS_ALIVE: Final = postgres_effects._IS_ALIVE
STARTED: Final = "pg_postmaster_start_time()"


@pytest.fixture(autouse=True)
def _long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of an hour, which are renewed and looked at several times in a second; Postgres began long before."""
    monkeypatch.setattr(postgres_effects, "LEASE", LONG)
    monkeypatch.setattr(postgres_effects, "_IS_ALIVE", IS_ALIVE.replace(STARTED, "timestamptz '2020-01-01'"))
    for name in ("RENEWAL", "LOOK"):
        monkeypatch.setattr(renewals, name, 0.05)
    monkeypatch.setattr(renewals, "ASK", 0.2)  # limits how long the answer may take, too


class WatchedEffects(PostgresEffects):
    """The ledger, which counts what it is asked."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.looks = 0
        self.renewals: list[Sequence[Claim]] = []

    async def is_alive(self, *keys: str) -> bool:
        self.looks += 1
        return await super().is_alive(*keys)

    async def renew(self, claims: Sequence[Claim]) -> Set[str]:
        kept = await super().renew(claims)
        self.renewals.append(claims)
        return kept


@pytest.fixture
async def ledger(addresses: Addresses) -> AsyncIterator[WatchedEffects]:
    async with aclosing(Database(addresses.database)) as database:
        yield WatchedEffects(database)


async def time_passes(url: str, run_id: str, lease_parts: float) -> None:
    """Let the leases of the run's calls be older by so many lengths of a lease."""
    sql = "UPDATE loom_effects SET alive_until = alive_until - %s WHERE run_id = %s"
    await rows(url, sql, (lease_parts * LONG, run_id))


async def worker_dies(url: str, run_id: str) -> None:
    """Let the leases of the run's calls end, and the connection of their worker be closed."""
    await rows(url, "UPDATE loom_effects SET session = NULL WHERE run_id = %s", (run_id,))
    await time_passes(url, run_id, 1.1)


async def looked(ledger: WatchedEffects) -> None:
    """Wait until whoever waits for a lease has looked at it twice more, the second time from the beginning."""
    await more_than(ledger.looks + 1, lambda: ledger.looks)


async def renewed(ledger: WatchedEffects) -> None:
    """Wait until the leases have been renewed twice more, the second time from the beginning."""
    await more_than(len(ledger.renewals) + 1, lambda: len(ledger.renewals))


async def more_than(count: int, counted: Callable[[], int]) -> None:
    async def look() -> bool:
        return counted() > count

    await eventually(look)


def test_a_frozen_workers_commands_stand_still_before_its_leases_end() -> None:
    assert LEASE.total_seconds() > PAUSE + INTERVAL


def test_a_frozen_worker_loses_its_commands_before_another_attempt_begins() -> None:
    assert (LEASE + STANDSTILL).total_seconds() > LIMIT + INTERVAL + RENEWAL


def test_a_lease_outlasts_renewals_that_are_lost() -> None:
    assert LEASE.total_seconds() > 4 * RENEWAL


# ---- leases in the ledger --------------------------------------------------------------------------------------


def claim(attempt: int = 1, *, run_id: str = "run") -> Claim:
    return Claim(key=f"{run_id}/x/t1/{uuid4().hex}", run_id=run_id, attempt=attempt)


async def test_a_claim_is_alive_until_its_lease_ends_unless_it_is_renewed(
    ledger: WatchedEffects, addresses: Addresses
) -> None:
    run_id = uuid4().hex
    dead, alive = claim(run_id=run_id), claim(run_id=run_id)
    for each in (dead, alive):
        await ledger.reserve(each.key, each.run_id, each.attempt)
        assert await ledger.is_alive(each.key)

    await time_passes(addresses.database, run_id, 0.6)
    assert [await ledger.is_alive(each.key) for each in (dead, alive)] == [True, True]
    assert await ledger.renew([alive]) == {alive.key}
    await time_passes(addresses.database, run_id, 0.6)

    assert [await ledger.is_alive(each.key) for each in (dead, alive)] == [False, True]


async def test_an_attempt_is_alive_for_longer_if_its_worker_stands_still_and_not_if_it_is_dead(
    ledger: WatchedEffects, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_effects, "STANDSTILL", LONG)
    run_id = uuid4().hex
    still, dead = claim(run_id=run_id), claim(run_id=run_id)
    await ledger.reserve(still.key, run_id, 1)
    async with aclosing(Database(addresses.database)) as database:
        await PostgresEffects(database).renew([dead])
        await time_passes(addresses.database, run_id, 1.5)
        assert [await ledger.is_alive(each.key) for each in (still, dead)] == [True, True]

    async def is_noticed() -> bool:
        return not await ledger.is_alive(dead.key)

    await eventually(is_noticed)
    assert await ledger.is_alive(still.key)
    assert await ledger.stood_still(still.key) == pytest.approx(1.5 * LONG.total_seconds(), abs=60)
    assert await ledger.stood_still(dead.key) == 0
    await time_passes(addresses.database, run_id, 0.6)
    assert not await ledger.is_alive(still.key)
    assert await ledger.stood_still(still.key) == pytest.approx(2.1 * LONG.total_seconds(), abs=60)
    await ledger.renew([still])
    assert await ledger.stood_still(still.key) == 0


async def test_a_call_that_has_ended_or_that_nobody_has_claimed_is_not_alive(ledger: WatchedEffects) -> None:
    finished, released, unclaimed = claim(), claim(), claim()
    for each in (finished, released):
        await ledger.reserve(each.key, each.run_id, each.attempt)
    await ledger.finish(finished.key, finished.attempt, ToolResult(content="done"))
    await ledger.release(released)
    assert not await ledger.is_alive(finished.key, released.key, unclaimed.key)


async def test_a_renewal_claims_what_nobody_has_claimed_and_nothing_that_a_later_attempt_holds(
    ledger: WatchedEffects,
) -> None:
    new, mine, taken = claim(), claim(), claim()
    await ledger.reserve(mine.key, "run", 1)
    await ledger.reserve(taken.key, "run", 2)
    assert await ledger.renew([new, mine, taken]) == {new.key, mine.key}
    assert await ledger.reserve(new.key, "run", 2) == 1


async def test_an_earlier_attempt_can_not_release_the_claim_of_a_later_one(ledger: WatchedEffects) -> None:
    first = claim()
    await ledger.reserve(first.key, "run", 1)
    await ledger.reserve(first.key, "run", 2)
    await ledger.release(first)
    assert await ledger.is_alive(first.key)


async def test_a_clock_that_is_set_back_keeps_no_dead_attempt_alive(
    ledger: WatchedEffects, addresses: Addresses
) -> None:
    first = claim()
    await ledger.reserve(first.key, "run", 1)
    await rows(
        addresses.database,
        "UPDATE loom_effects SET alive_until = alive_until + %s WHERE key = %s RETURNING key",
        (LONG, first.key),
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


async def test_a_lease_that_is_renewed_while_somebody_looks_at_it_does_not_end(
    ledger: PostgresEffects, addresses: Addresses
) -> None:
    first = claim()
    await ledger.renew([first])
    values = {"ids": [postgres_effects._id(first.key)], "lease": postgres_effects.LEASE, "standstill": STANDSTILL}

    async with (
        aclosing(Database(addresses.database)) as database,
        database.connection() as connection,
        connection.transaction(),
    ):
        await connection.execute("SELECT now()")  # which stays the same in a transaction
        await ledger.renew([first])
        cursor = await connection.execute(postgres_effects._IS_ALIVE, values)
        assert await cursor.fetchone() == (True,)


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
    ledger: WatchedEffects, addresses: Addresses, effect: Effect
) -> None:
    run, work, here, elsewhere = uuid4().hex, Work(), Effects(ledger=ledger), Effects(ledger=ledger)
    first = asyncio.create_task(attempted(here, request(effect, run=run), work))
    await eventually(lambda: ledger.is_alive(idempotency_key(request(effect, run=run))))
    second = asyncio.create_task(attempted(elsewhere, request(effect, run=run, attempt=2), work))

    for _ in range(2):
        await time_passes(addresses.database, run, 0.6)
        await renewed(ledger)
    await looked(ledger)
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
    ledger: WatchedEffects, addresses: Addresses, effect: Effect, result: ToolResult
) -> None:
    lost, work = request(effect, run=uuid4().hex), Work()
    await ledger.reserve(idempotency_key(lost), lost.origin.run_id, 1)
    work.may_end.set()
    second = asyncio.create_task(attempted(Effects(ledger=ledger), replace(lost, attempt=2, begun=True), work))
    await looked(ledger)
    assert not second.done()
    await worker_dies(addresses.database, lost.origin.run_id)
    assert await second == result


async def test_the_next_attempt_says_so_if_the_worker_of_an_earlier_one_stands_still(
    ledger: WatchedEffects, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_effects, "STANDSTILL", LONG)
    lost, work = request(Effect.ONCE, run=uuid4().hex), Work()
    await ledger.reserve(idempotency_key(lost), lost.origin.run_id, 1)
    second = asyncio.create_task(attempted(Effects(ledger=ledger), replace(lost, attempt=2, begun=True), work))
    await time_passes(addresses.database, lost.origin.run_id, 1.5)
    await looked(ledger)
    assert not second.done()
    await time_passes(addresses.database, lost.origin.run_id, 0.6)
    said = (await second).content
    assert said in [stopped_outcome(2.1 * LONG.total_seconds() + slow) for slow in range(60)]
    assert work.times == 0


async def test_a_run_that_stops_the_waiting_attempt_ends_the_one_that_is_alive(ledger: WatchedEffects) -> None:
    run, work, effects = uuid4().hex, Work(), Effects(ledger=ledger)
    first = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run), work))
    await eventually(lambda: ledger.is_alive(idempotency_key(request(Effect.ONCE, run=run))))
    waiting = ActivityEnvironment()
    second = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run, attempt=2), work, waiting))
    await renewed(ledger)

    waiting.cancel(ActivityCancellationDetails(cancel_requested=True))
    for stopped in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await stopped
    assert work.was_stopped


@pytest.mark.parametrize("why", [GIVEN_UP, ActivityCancellationDetails(worker_shutdown=True)], ids=str)
async def test_a_waiting_attempt_that_nobody_stopped_leaves_the_one_that_is_alive_alone(
    ledger: WatchedEffects, why: ActivityCancellationDetails
) -> None:
    run, work, effects = uuid4().hex, Work(), Effects(ledger=ledger)
    first = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run), work))
    await eventually(lambda: ledger.is_alive(idempotency_key(request(Effect.ONCE, run=run))))
    waiting = ActivityEnvironment()
    second = asyncio.create_task(attempted(effects, request(Effect.ONCE, run=run, attempt=2), work, waiting))
    await renewed(ledger)

    waiting.cancel(why)
    with pytest.raises(asyncio.CancelledError):
        await second
    await renewed(ledger)
    work.may_end.set()
    assert (await first).content == "done 1"


async def test_after_a_restart_of_postgres_workers_have_time_to_renew_their_leases(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(Database(postgres.url)) as database:
        ledger, first = PostgresEffects(database), claim(run_id=uuid4().hex)
        await ledger.reserve(first.key, first.run_id, 1)
        await postgres.stop()
        await postgres.start()
        await eventually(lambda: _answers(ledger, first))
        await time_passes(postgres.url, first.run_id, 1.1)
        assert not await ledger.is_alive(first.key)
        monkeypatch.setattr(postgres_effects, "_IS_ALIVE", IS_ALIVE)  # knows of the restart
        assert await ledger.is_alive(first.key)
        monkeypatch.setattr(postgres_effects, "LEASE", timedelta(0))  # as if it had passed since then
        assert not await ledger.is_alive(first.key)


async def _answers(ledger: PostgresEffects, of: Claim) -> bool:
    try:
        await ledger.is_alive(of.key)
    except StoreUnavailable:
        return False
    return True


async def test_a_short_call_that_only_reads_leaves_nothing_in_the_ledger(ledger: WatchedEffects) -> None:
    made, work = request(Effect.READ, run=uuid4().hex), Work()
    work.may_end.set()
    assert (await attempted(Effects(ledger=ledger), made, work)).content == "done 1"
    assert await ledger.find(idempotency_key(made)) is None


@pytest.mark.usefixtures("soon_away")
@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_long_call_that_only_reads_does_not_depend_on_the_ledger(attempt: int) -> None:
    async with aclosing(Database("postgresql://nobody@127.0.0.1:9/none")) as database:
        work, made = Work(), request(Effect.READ, run="r", attempt=attempt)
        with structlog.testing.capture_logs() as logs:
            reading = asyncio.create_task(attempted(Effects(ledger=PostgresEffects(database)), made, work))
            await eventually(lambda: _began(work))
            if attempt == 1:  # a later one has learned already that the ledger is away, and leaves it alone
                await more_than(1, lambda: [log["event"] for log in logs].count("leases_not_renewed"))
            work.may_end.set()
            assert (await reading).content == "done 1"


async def _began(work: Work) -> bool:
    return work.times > 0


async def test_one_statement_renews_the_leases_of_all_calls(ledger: WatchedEffects) -> None:
    leases, claims, may_end = Leases(ledger), [claim() for _ in range(50)], asyncio.Event()

    async def call(of: Claim) -> bool:
        with leases.held(of) as lease:
            await may_end.wait()
            return lease.is_recorded

    calls = [asyncio.create_task(call(each)) for each in claims]
    await renewed(ledger)
    assert {each.key for each in ledger.renewals[-1]} == {each.key for each in claims}
    assert all([await ledger.is_alive(each.key) for each in claims])
    may_end.set()
    assert all(await asyncio.gather(*calls))


async def test_of_two_attempts_on_one_worker_the_later_one_stays(ledger: WatchedEffects) -> None:
    leases, first, may_end = Leases(ledger), claim(), asyncio.Event()

    async def call(of: Claim) -> None:
        with leases.held(of):
            await may_end.wait()

    later, earlier = (asyncio.create_task(call(replace(first, attempt=attempt))) for attempt in (2, 1))
    with pytest.raises(asyncio.CancelledError):
        await earlier
    await renewed(ledger)
    assert not later.done()
    may_end.set()
    await later


# ---- an attempt that Temporal has given up ---------------------------------------------------------------------


@pytest.fixture
async def run(addresses: Addresses) -> AsyncIterator[WorkflowHandle[object, object]]:
    """A run that goes on, because no worker serves it."""
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    handle = await client.start_workflow("Waiting", id=f"test-{uuid4().hex[:8]}", task_queue="nobody")
    try:
        yield handle
    finally:
        if (await handle.describe()).close_time is None:
            await handle.terminate()


def activity_of(run: WorkflowHandle[object, object], *, within: float = 10 * PATIENCE) -> ActivityEnvironment:
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


async def test_work_goes_on_if_only_its_attempt_is_given_up(
    run: WorkflowHandle[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, work = activity_of(run), Work()
    describe, described = WorkflowHandle.describe, list[object]()

    async def watched(*given: Any, **named: Any) -> Any:
        described.append(await describe(*given, **named))
        return described[-1]

    monkeypatch.setattr(WorkflowHandle, "describe", watched)
    attempt = await begun(environment, work)
    environment.cancel(GIVEN_UP)
    await more_than(1, lambda: len(described))  # the run is seen to go on
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
    environment, work = activity_of(run, within=0.5), Work()
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


# ---- a worker that has stood still ------------------------------------------------------------------------------


async def test_a_call_is_wanted_while_its_run_goes_on_and_nobody_has_taken_it_over(
    ledger: PostgresEffects, run: WorkflowHandle[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "RENEWAL", LONG.total_seconds())  # no renewal learns it first
    leases, first = Leases(ledger), claim()

    async def attempt() -> list[bool | None]:
        with leases.held(first):
            task = asyncio.current_task()
            before = await leases.is_wanted(task)
            await ledger.reserve(first.key, first.run_id, first.attempt + 1)
            return [before, await leases.is_wanted(task)]

    assert await activity_of(run).run(attempt) == [True, False]


async def test_no_call_of_a_run_that_has_ended_is_wanted(
    ledger: PostgresEffects, run: WorkflowHandle[object, object]
) -> None:
    async def attempt() -> list[bool | None]:
        before = await Leases(ledger).is_wanted(None)
        await run.terminate()
        return [before, await Leases(ledger).is_wanted(None)]

    assert await activity_of(run).run(attempt) == [True, False]


@pytest.mark.usefixtures("soon_away")
async def test_whether_a_call_is_wanted_is_unknown_without_the_ledger_and_without_temporal(
    run: WorkflowHandle[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")

    async def attempt() -> list[bool | None]:
        async with aclosing(Database("postgresql://nobody@127.0.0.1:9/none")) as database:
            leases = Leases(PostgresEffects(database))
            with leases.held(claim()):
                task = asyncio.current_task()
                without_ledger = await leases.is_wanted(task)
                with monkeypatch.context() as patched:
                    patched.setattr(WorkflowHandle, "describe", unavailable)
                    return [without_ledger, await leases.is_wanted(task)]

    assert await activity_of(run).run(attempt) == [None, None]
