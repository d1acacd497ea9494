"""Large payloads on a real Postgres, and what Temporal makes of a Postgres that is away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext, StorageDriverStoreContext
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Worker

from loom.activities.adapters.postgres.payloads import MISSING, UNAVAILABLE, PostgresPayloads
from loom.testing.harness import Addresses
from loom.testing.waiting import eventually
from loom.workflows.payload_converter import data_converter

from .conftest import PostgresServer

STORE: Final = StorageDriverStoreContext()
RETRIEVE: Final = StorageDriverRetrieveContext()


def payload(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain", "more": b"\0"}, data=text.encode())


@pytest.fixture
async def driver(postgres: PostgresServer) -> AsyncIterator[PostgresPayloads]:
    async with aclosing(PostgresPayloads(postgres.url)) as driver:
        yield driver


async def rows(postgres: PostgresServer) -> int:
    async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
        found = await (await connection.execute("SELECT count(*) FROM loom_payloads")).fetchone()
    assert found is not None
    return int(found[0])


async def test_payloads_come_back_as_they_were(driver: PostgresPayloads) -> None:
    payloads = [payload("b" * 300_000), payload("a"), payload("ä")]
    claims = await driver.store(STORE, payloads)
    assert await driver.retrieve(RETRIEVE, claims) == payloads
    assert await driver.retrieve(RETRIEVE, claims[::-1]) == payloads[::-1]


async def test_equal_payloads_are_one_row(driver: PostgresPayloads, postgres: PostgresServer) -> None:
    one = payload("the same")
    first = await driver.store(STORE, [one])
    before = await rows(postgres)
    assert await driver.store(STORE, [one, one]) == first * 2
    assert await rows(postgres) == before


async def test_drivers_that_start_together_share_the_table(postgres: PostgresServer) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        await connection.execute("DROP TABLE IF EXISTS loom_payloads")
    payloads = [payload(str(n)) for n in range(20)]
    orders = [payloads, payloads[::-1]] * 9
    async with AsyncExitStack() as stack:
        drivers = [await stack.enter_async_context(aclosing(PostgresPayloads(postgres.url))) for _ in range(6)]
        stored = (drivers[n % len(drivers)].store(STORE, order) for n, order in enumerate(orders))
        claims = await asyncio.gather(*stored)
    assert {claim.claim_data["id"] for claim in claims[0]} == {claim.claim_data["id"] for claim in claims[-1]}
    assert await rows(postgres) == 20


async def test_a_payload_that_is_not_there_is_named(driver: PostgresPayloads) -> None:
    with pytest.raises(ApplicationError, match=f"Payload {'ab' * 32} is missing from loom_payloads") as caught:
        await driver.retrieve(RETRIEVE, [StorageDriverClaim(claim_data={"id": "ab" * 32})])
    assert (caught.value.type, caught.value.non_retryable) == (MISSING, False)


async def test_a_payload_that_was_changed_is_not_believed(driver: PostgresPayloads, postgres: PostgresServer) -> None:
    [claim] = await driver.store(STORE, [payload("true")])
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        await connection.execute(
            "UPDATE loom_payloads SET data = 'x' WHERE id = %s", (bytes.fromhex(claim.claim_data["id"]),)
        )
    with pytest.raises(ApplicationError, match="was changed") as caught:
        await driver.retrieve(RETRIEVE, [claim])
    assert caught.value.type == MISSING


async def test_a_dropped_table_is_made_again(driver: PostgresPayloads, postgres: PostgresServer) -> None:
    await driver.store(STORE, [payload("x")])
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        await connection.execute("DROP TABLE loom_payloads")
    with pytest.raises(ApplicationError) as caught:
        await driver.store(STORE, [payload("x")])
    assert caught.value.type == UNAVAILABLE
    assert len(await driver.store(STORE, [payload("x")])) == 1


async def test_a_postgres_that_is_away_is_waited_for_and_found_again(
    driver: PostgresPayloads, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found() -> list[Payload] | None:
        try:
            return await driver.retrieve(RETRIEVE, claims)
        except ApplicationError:
            return None

    claims = await driver.store(STORE, [payload("kept")])
    await postgres.stop()
    try:
        monkeypatch.setattr(driver._database._pool, "timeout", 0.1)  # the usual two seconds are not the point
        for _ in range(2):
            with pytest.raises(ApplicationError, match="does not respond") as caught:
                await driver.retrieve(RETRIEVE, claims)
            assert (caught.value.type, caught.value.non_retryable) == (UNAVAILABLE, False)
    finally:
        await postgres.start()
    assert await eventually(found) == [payload("kept")]


async def test_closing_twice_or_before_the_first_use_is_fine(postgres: PostgresServer) -> None:
    async with aclosing(PostgresPayloads(postgres.url)) as driver:
        await driver.aclose()
        claims = await driver.store(STORE, [payload("x")])
        await driver.aclose()
        await driver.aclose()
        assert await driver.retrieve(RETRIEVE, claims) == [payload("x")]


# ---- what Temporal makes of it ---------------------------------------------------------------------------------

LARGE: Final = "x" * 300_000
ONCE: Final = RetryPolicy(maximum_attempts=1)


class Unsteady(PostgresPayloads):
    """Answers, but for the next so many calls of a kind."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.failures: Counter[str] = Counter()
        self._nowhere = PostgresPayloads("postgresql://127.0.0.1:1/nowhere")

    async def store(self, context: Any, payloads: Any) -> list[StorageDriverClaim]:
        return await (self._nowhere.store if self._fails("store") else super().store)(context, payloads)

    async def retrieve(self, context: Any, claims: Any) -> list[Payload]:
        return await (self._nowhere.retrieve if self._fails("retrieve") else super().retrieve)(context, claims)

    async def aclose(self) -> None:
        await self._nowhere.aclose()
        await super().aclose()

    def _fails(self, kind: str) -> bool:
        self.failures[kind] -= 1
        return self.failures[kind] >= 0


@pytest.fixture
async def unsteady(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Unsteady]:
    async with aclosing(Unsteady(postgres.url)) as driver:
        await driver.store(STORE, [payload("x")])  # has its connections, before those to nowhere lose their patience
        monkeypatch.setattr("loom.activities.adapters.postgres.database._CONNECT_SECONDS", 0.1)
        yield driver


@activity.defn
async def shorten(text: str) -> str:
    return text[:3]


@activity.defn
async def lengthen(text: str) -> str:
    del text
    return LARGE


@workflow.defn(sandboxed=False)
class Passing:
    """Passes a large payload into an activity, or gets one out of it, and says what went wrong."""

    @workflow.run
    async def run(self, way: str) -> list[str | None]:
        within = timedelta(seconds=100)
        try:
            if way == "in":
                await workflow.execute_activity(shorten, LARGE, start_to_close_timeout=within, retry_policy=ONCE)
            else:
                await workflow.execute_activity(lengthen, "", start_to_close_timeout=within, retry_policy=ONCE)
        except ActivityError as error:
            first = error.cause
            assert isinstance(first, ApplicationError)
            causes = [first, first.__cause__]
            return [cause.type if isinstance(cause, ApplicationError) else None for cause in causes]
        return ["passed"]


@pytest.mark.parametrize(
    ("way", "failures", "outcome"),
    [
        # The activity has not run: its input is missing.
        ("in", {"retrieve": 1}, [None, UNAVAILABLE]),
        # The activity has run: its result could not be kept.
        ("out", {"store": 1}, [UNAVAILABLE, "PoolTimeout"]),
        # A workflow task that fails is tried again, and the run does not notice.
        ("in", {"store": 1}, ["passed"]),
        ("out", {"retrieve": 1}, ["passed"]),
        ("in", {}, ["passed"]),
        ("out", {}, ["passed"]),
    ],
)
async def test_a_postgres_that_is_away_never_fails_a_run(
    unsteady: Unsteady, addresses: Addresses, way: str, failures: dict[str, int], outcome: list[str | None]
) -> None:
    unsteady.failures = Counter(failures)
    client = await Client.connect(
        addresses.temporal, namespace=addresses.namespace, data_converter=data_converter(unsteady)
    )
    queue = uuid4().hex
    async with Worker(client, task_queue=queue, workflows=[Passing], activities=[shorten, lengthen]):
        result: list[str | None] = await client.execute_workflow(Passing.run, way, id=queue, task_queue=queue)
    assert result == outcome
