"""Stored data of runs that have left the server, on a real Temporal server and a real Postgres.

The server deletes a run when its retention period is over. A test deletes it by request, which leaves the same.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.converter import StorageDriverStoreContext, StorageDriverWorkflowInfo
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment

from loom.activities.adapters.postgres.collection import PostgresStoredData
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.activities.adapters.temporal.run_index import TemporalRunIndex
from loom.activities.collection import GRACE, Collection
from loom.domain.core.stored_data import Collected, StoredTree, tree_of
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.databases import fresh_database, rows
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

LONG = "long " * 60_000
"""More than what fits in a history."""
QUEUES = ("transfer", "timer", "visibility")
"""A deletion waits until what stood in them before is recorded as done."""
WRITE = calls(ToolUse("bash", {"command": "seq 100000"}, "b1"))


@pytest.fixture
async def url(addresses: Addresses) -> AsyncIterator[str]:
    """A database of the test's own."""
    async with fresh_database(addresses.database) as url:
        yield url


@pytest.fixture(scope="module")
async def addresses(loom_stack: Addresses) -> AsyncIterator[Addresses]:
    """With a server of the module's own, which deletes a run at once, and not half a minute after it was asked to."""
    program = str(Path(sys.executable).with_name("temporal"))
    often = [f'history.{queue}ProcessorUpdateAckInterval="100ms"' for queue in QUEUES]
    flags = [word for value in often for word in ("--dynamic-config-value", value)]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=program, dev_server_extra_args=flags
    ) as server:
        yield replace(loom_stack, temporal=server.client.service_client.config.target_host, namespace="default")


@pytest.fixture
async def stored(url: str) -> AsyncIterator[PostgresStoredData]:
    async with aclosing(Database(url)) as database:
        stored = PostgresStoredData(database)
        await stored.sizes()  # creates the tables
        yield stored


@pytest.fixture
async def payloads(url: str) -> AsyncIterator[PostgresPayloads]:
    async with aclosing(PostgresPayloads(url)) as payloads:
        yield payloads


def collection(stored: PostgresStoredData, client: Client, grace: timedelta = timedelta()) -> Collection:
    return Collection(stored, TemporalRunIndex(client), grace=grace)


async def collected(of: Collection, url: str) -> Collected:
    """A round that comes an hour after the one before."""
    await rows(url, "UPDATE loom_stored_runs SET checked_at = NULL")
    return await of.collect(datetime.now(UTC) + timedelta(seconds=1))


async def deleted(loom: Harness, *runs: str) -> None:
    """Let these runs leave the server."""
    client = loom.client.temporal
    for run in runs:
        execution = WorkflowExecution(workflow_id=run)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
        await client.workflow_service.delete_workflow_execution(request)

    async def gone() -> bool:
        found = [await left(client, run) for run in runs]
        return not any(found)

    await eventually(gone)


async def left(client: Client, run: str) -> bool:
    try:
        await client.get_workflow_handle(run).describe()
    except RPCError:
        return False
    return True


async def kept(url: str) -> dict[str, int]:
    """The number of rows in each table."""
    tables = ("loom_artifacts", "loom_effects", "loom_payloads", "loom_payload_owners", "loom_used_starts")
    return {table.removeprefix("loom_"): (await rows(url, f"SELECT count(*) FROM {table}"))[0][0] for table in tables}


@pytest.mark.slow
async def test_what_a_run_stored_goes_when_the_server_no_longer_has_it_and_nobody_else_needs_it(
    working: Working, url: str, stored: PostgresStoredData
) -> None:
    replies = by_task({"": [WRITE, text("done")]})
    loom, _ = await working(replies, database_url=url, max_mode="bypass", require_signed="on", replay=False)
    one, other = [await loom.start(LONG, mode="bypass") for _ in range(2)]
    for run in (one, other):
        await loom.client.result(run)
    of = collection(stored, loom.client.temporal)
    before = await kept(url)
    assert (before["artifacts"], before["used_starts"]) == (2, 2)
    effects = dict(await rows(url, "SELECT run_id, count(*) FROM loom_effects GROUP BY run_id"))
    assert effects.keys() == {one, other}, "of the command, and of answers that took long to come"
    shared, own = before["payload_owners"] - before["payloads"], 2 * before["payloads"] - before["payload_owners"]
    assert shared > 0, "both runs have the same task"
    assert own % 2 == 0, "each of them has stored as many others"

    assert await collected(of, url) == Collected()
    await deleted(loom, one)
    assert await collected(of, url) == Collected(artifacts=1, effects=effects[one], payloads=own // 2)
    assert await rows(url, "SELECT run_id FROM loom_used_starts") == [(other,)]
    assert (await loom.client.result(other)).output == "done"
    assert (await loom.histories(other))[0].events
    await deleted(loom, other)
    assert await collected(of, url) == Collected(artifacts=1, effects=effects[other], payloads=shared + own // 2)
    assert set((await kept(url)).values()) == {0}
    assert await rows(url, "SELECT * FROM loom_stored_runs") == []


@pytest.mark.slow
async def test_a_tree_keeps_all_of_its_data_as_long_as_one_of_its_runs_is_there(
    working: Working, url: str, stored: PostgresStoredData
) -> None:
    down = delegate("below", "work below", "c1", tools=["bash"])
    replies = by_task({"the root": [calls(down), text("done")], "work below": [WRITE, text("low")]})
    loom, _ = await working(replies, database_url=url, max_mode="bypass", replay=False)
    root = await loom.start("the root", mode="bypass")
    await loom.client.result(root)
    (child,) = await loom.below(root)
    of = collection(stored, loom.client.temporal)
    await collected(of, url)

    await deleted(loom, child)
    assert await collected(of, url) == Collected()
    await deleted(loom, root)
    assert await collected(of, url) == Collected(artifacts=1, effects=1)


async def test_what_this_server_never_had_is_kept(
    working: Working, url: str, stored: PostgresStoredData, payloads: PostgresPayloads
) -> None:
    loom, _ = await working(script([]))
    await store(payloads, "one", owner="a run of another server")
    # An earlier release names no run.
    await rows(url, "INSERT INTO loom_payloads (id, data, size) VALUES ('two', '2', 1) ON CONFLICT DO NOTHING")
    of = collection(stored, loom.client.temporal)

    for _ in range(2):
        assert await collected(of, url) == Collected()
    assert (await kept(url))["payloads"] == 2
    assert (await stored.sizes())["payloads without a known run"][0] == 1


@pytest.mark.slow
async def test_data_that_was_stored_today_is_kept(working: Working, url: str, stored: PostgresStoredData) -> None:
    loom, _ = await working(script([text("done")]), database_url=url, replay=False)
    run = await loom.start(LONG)
    await loom.client.result(run)
    of = collection(stored, loom.client.temporal, GRACE)
    before = await kept(url)
    await rows(url, "UPDATE loom_payload_owners SET stored_at = stored_at - interval '23 hours'")
    await collected(of, url)

    await deleted(loom, run)
    assert await collected(of, url) == Collected()
    await rows(url, "UPDATE loom_payload_owners SET stored_at = stored_at - interval '2 hours'")
    assert (await collected(of, url)).payloads == before["payloads"]


@pytest.mark.slow
async def test_a_workflow_of_your_own_keeps_the_data_of_the_runs_that_it_started(
    working: Working, url: str, stored: PostgresStoredData, payloads: PostgresPayloads
) -> None:
    """Its history refers to a large result of such a run, and must stay readable."""
    loom, _ = await working(script([text("done")]), database_url=url, replay=False)
    parent = await loom.start("waits for nothing")
    await loom.client.result(parent)
    child = f"child-{uuid4().hex}"
    server = await TemporalRunIndex(loom.client.temporal).server()
    await store(payloads, "a large result", owner=child)
    await stored.unknown(server, datetime.now(UTC), 1)
    await stored.look_up(server, child, parent)
    of = collection(stored, loom.client.temporal)

    assert await collected(of, url) == Collected()
    await deleted(loom, parent)
    assert (await collected(of, url)).payloads == 1


async def store(payloads: PostgresPayloads, content: str, *, owner: str) -> None:
    target = StorageDriverWorkflowInfo(namespace="default", id=owner or None)
    payload = Payload(metadata={"encoding": b"json/plain"}, data=content.encode())
    await payloads.store(StorageDriverStoreContext(target=target), [payload])


CONTENTS = st.sampled_from("abc")
RUNS = st.sampled_from(["r1", "r2", "r3", ""])
STEPS = st.lists(st.one_of(st.tuples(st.just("store"), CONTENTS, RUNS), st.tuples(st.just("delete"), RUNS)), max_size=9)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
async def test_a_payload_stays_as_long_as_one_of_its_owners(
    url: str, stored: PostgresStoredData, payloads: PostgresPayloads, steps: Sequence[Any]
) -> None:
    await stored.unknown("s", datetime.now(UTC), 1)
    await rows(url, "TRUNCATE loom_payloads, loom_payload_owners")
    owners: dict[str, set[str]] = {}
    for step, *of in steps:
        if step == "store":
            content, run = of
            owners.setdefault(content, set()).add(run)
            await store(payloads, content, owner=run)
        elif of != [""]:
            tree = StoredTree(root=of[0], runs=(of[0],))
            await stored.delete("s", tree, datetime.now(UTC) + timedelta(seconds=1))
            owners = {content: rest for content, runs in owners.items() if (rest := runs - {of[0]})}
    found = await rows(url, "SELECT count(*) FROM loom_payloads")
    assert found == [(len(owners),)]


async def test_a_writer_never_loses_a_payload_to_a_collection_at_the_same_time(
    url: str, stored: PostgresStoredData, payloads: PostgresPayloads
) -> None:
    await store(payloads, "x", owner="old")

    async def write(number: int) -> None:
        await store(payloads, "x", owner=f"new-{number}")

    async def collect() -> None:
        await stored.delete("s", StoredTree(root="old", runs=("old",)), datetime.now(UTC) + timedelta(seconds=1))

    for _ in range(10):
        await asyncio.gather(*(write(number) if number % 2 else collect() for number in range(8)))
        assert await rows(url, "SELECT count(*) FROM loom_payloads") == [(1,)]
        await rows(url, "DELETE FROM loom_payload_owners")
        await store(payloads, "x", owner="old")


@pytest.mark.parametrize(
    ("run_id", "root"),
    [
        ("run-1", "run-1"),
        ("run-1/d3-1-a0ff", "run-1"),
        ("run-1/d3-1-a0ff/d1-2-beef", "run-1"),
        ("nightly/2026-11-23", "nightly/2026-11-23"),
        ("nightly/2026-11-23/d1-1-0000", "nightly/2026-11-23"),
    ],
)
def test_the_tree_of_a_run_is_read_from_its_id(run_id: str, root: str) -> None:
    assert tree_of(run_id) == root
