"""The upkeep of a queue on a real Temporal server: it goes round, says what failed, and follows the ends of runs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, Worker

from loom.domain.core.stored_data import Collected
from loom.domain.memory.backfill import CatchUpRequest, CaughtUp, KeptMemories, UpkeepDone, UpkeepRequest
from loom.testing.harness import HANGS_AFTER, Addresses
from loom.testing.waiting import eventually
from loom.workflows.memory_upkeep import MemoryUpkeep, upkeep_id
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
GONE = Collected(artifacts=2, payloads=1)


class Steps:
    """The activities of a worker that can neither promote memories nor abort orphans. After `full_round`, memories
    remain.
    """

    def __init__(self, *, full_round: int = 0) -> None:
        self.since: list[datetime | None] = []
        self.rounds = 0
        self._full_round = full_round

    @activity.defn(name="catch_up")
    async def catch_up(self, request: CatchUpRequest) -> CaughtUp:
        self.since.append(request.since)
        return CaughtUp(until=UNTIL, tasks=3)

    @activity.defn(name="keep_memories")
    async def keep(self) -> KeptMemories:
        self.rounds += 1
        has_more = self.rounds == self._full_round
        return KeptMemories(expired=2, embedded=1, has_more=has_more, failed=("promote",))

    @activity.defn(name="collect_stored_data")
    async def collect(self) -> Collected:
        return GONE

    @activity.defn(name="abort_orphans")
    async def abort_orphans(self) -> int:
        raise ApplicationError("no", non_retryable=True)

    def all(self) -> Sequence[object]:
        return [self.catch_up, self.keep, self.collect, self.abort_orphans]


async def start(client: Client, queue: str) -> "WorkflowHandle[MemoryUpkeep, None]":
    """As a worker does when a run has ended."""
    return await client.start_workflow(
        MemoryUpkeep.run, UpkeepRequest(rounds=3), id=upkeep_id(queue), task_queue=queue, start_signal="runs_ended"
    )


GARBAGE = st.one_of(
    st.text(max_size=5),
    st.integers(),
    st.lists(st.integers(), max_size=2),
    st.fixed_dictionaries({"rounds": st.one_of(st.integers(max_value=0), st.text(max_size=3), st.none().map(str))}),
    st.fixed_dictionaries({"since": st.sampled_from(["yesterday", "2026-01-01T00:00:00", [], {}])}),
    st.dictionaries(st.text(min_size=8, max_size=9), st.integers(), min_size=1, max_size=2),
)


@pytest.fixture
async def queue(addresses: Addresses) -> AsyncIterator[str]:
    """The task queue of a worker that serves upkeep without its activities."""
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace, data_converter=data_converter())
    name = f"upkeep-{uuid4().hex[:8]}"
    async with Worker(client, task_queue=name, workflows=[MemoryUpkeep], workflow_runner=WORKFLOW_RUNNER):
        yield name


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(GARBAGE)
async def test_upkeep_that_is_started_by_hand_with_garbage_fails_and_says_why(
    addresses: Addresses, queue: str, garbage: object
) -> None:
    client = await Client.connect(
        addresses.temporal, namespace=addresses.namespace
    )  # without Loom's converter, as in another language
    async with asyncio.timeout(HANGS_AFTER):  # a workflow whose task fails is tried again without an end
        handle = await client.start_workflow(
            "MemoryUpkeep",
            garbage,
            id=uuid4().hex,
            task_queue=queue,
            start_signal="runs_ended",
            start_signal_args=[garbage],
        )
        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
    assert isinstance(raised.value.cause, ApplicationError)
    assert (raised.value.cause.type, "the upkeep's input" in raised.value.cause.message) == ("BadRequest", True)


@pytest.mark.slow
async def test_a_round_follows_each_end_of_runs_and_each_full_round_and_says_what_failed(
    addresses: Addresses,
) -> None:
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace, data_converter=data_converter())
    queue, steps = f"upkeep-{uuid4().hex[:8]}", Steps(full_round=2)
    async with Worker(
        client,
        task_queue=queue,
        workflows=[MemoryUpkeep],
        activities=steps.all(),  # type: ignore[arg-type]
        workflow_runner=WORKFLOW_RUNNER,
    ):
        handle = await start(client, queue)
        first = handle.first_execution_run_id

        async def rounds(count: int) -> bool:
            return steps.rounds >= count

        # The signal that it was started with is for the next round: what had ended may have come in during the first.
        await eventually(lambda: rounds(2))

        async def told() -> bool:
            done = UpkeepDone(until=UNTIL, expired=2, embedded=1, failed=("promote",))
            return await handle.query(MemoryUpkeep.status) == done

        await eventually(told)  # of a round that follows an end of a run: the first one looks back and collects
        await eventually(lambda: rounds(3))  # no run has ended, but the second round left memories for it
        await start(client, queue)
        await eventually(lambda: rounds(4))
        # The fourth round is the first of a fresh history, which looks back to where the last one had come.
        assert steps.since == [None, UNTIL]
        old = client.get_workflow_handle(upkeep_id(queue), run_id=first)
        assert (await old.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW
        history = await old.fetch_history()
        replayer = Replayer(workflows=[MemoryUpkeep], workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())
        await replayer.replay_workflow(history)
        await handle.terminate()
