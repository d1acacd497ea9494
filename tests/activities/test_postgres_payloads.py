"""Large payloads on a real Postgres, and what Temporal makes of a Postgres that is away."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import psycopg
import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext, StorageDriverStoreContext
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.adapters.postgres_payloads import MISSING, UNAVAILABLE, PostgresPayloads

from .conftest import PostgresServer

STORE: Final = StorageDriverStoreContext()
RETRIEVE: Final = StorageDriverRetrieveContext()


def payload(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain", "more": b"\0"}, data=text.encode())


@pytest.fixture
async def driver(postgres: PostgresServer) -> AsyncIterator[PostgresPayloads]:
    driver = PostgresPayloads(postgres.url)
    yield driver
    await driver.aclose()


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
    drivers = [PostgresPayloads(postgres.url) for _ in range(6)]
    payloads = [payload(str(n)) for n in range(20)]
    orders = [payloads, payloads[::-1]] * 9
    claims = await asyncio.gather(*(drivers[n % len(drivers)].store(STORE, order) for n, order in enumerate(orders)))
    assert {claim.claim_data["id"] for claim in claims[0]} == {claim.claim_data["id"] for claim in claims[-1]}
    assert await rows(postgres) == 20
    for driver in drivers:
        await driver.aclose()


async def test_a_payload_that_is_not_there_is_named(driver: PostgresPayloads) -> None:
    with pytest.raises(ApplicationError, match=f"Payload {'ab' * 32} is not in loom_payloads") as caught:
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
    driver: PostgresPayloads, postgres: PostgresServer
) -> None:
    claims = await driver.store(STORE, [payload("kept")])
    await postgres.stop()
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(ApplicationError, match="does not answer") as caught:
            await driver.retrieve(RETRIEVE, claims)
        assert (caught.value.type, caught.value.non_retryable) == (UNAVAILABLE, False)
    assert time.monotonic() - started < 10
    await postgres.start()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            assert await driver.retrieve(RETRIEVE, claims) == [payload("kept")]
        except ApplicationError:
            continue
        return
    pytest.fail("the driver did not find Postgres again")


async def test_closing_twice_or_before_the_first_use_is_fine(postgres: PostgresServer) -> None:
    driver = PostgresPayloads(postgres.url)
    await driver.aclose()
    await driver.store(STORE, [payload("x")])
    await driver.aclose()
    await driver.aclose()
