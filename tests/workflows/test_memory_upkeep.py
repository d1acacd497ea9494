"""A round of upkeep on a real Temporal server: it begins where the last one ended; a failed step stops no other."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

from temporalio import activity
from temporalio.client import Client, Schedule, ScheduleActionExecutionStartWorkflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, Worker

from loom_domain.catching_up import CatchUpRequest, CaughtUp
from tests.harness import Addresses
from tests.waiting import eventually
from workflows.converter import data_converter
from workflows.memory_upkeep import MemoryUpkeep, UpkeepDone, upkeep_schedule
from workflows.runner import WORKFLOW_RUNNER

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)


class Steps:
    """The activities of a worker whose promotion always fails."""

    def __init__(self) -> None:
        self.since: list[datetime | None] = []

    @activity.defn(name="catch_up")
    async def catch_up(self, request: CatchUpRequest) -> CaughtUp:
        self.since.append(request.since)
        return CaughtUp(until=UNTIL, tasks=3)

    @activity.defn(name="promote_memories")
    async def promote(self) -> int:
        raise ApplicationError("no", non_retryable=True)

    @activity.defn(name="expire_memories")
    async def expire(self) -> int:
        return 2

    @activity.defn(name="embed_memories")
    async def embed(self) -> int:
        return 1

    def all(self) -> Sequence[object]:
        return [self.catch_up, self.promote, self.expire, self.embed]


async def test_a_round_begins_where_the_last_one_ended_and_says_what_failed(addresses: Addresses) -> None:
    client = await Client.connect(addresses.temporal, data_converter=data_converter())
    queue, steps = f"upkeep-{uuid4().hex[:8]}", Steps()
    schedule: Schedule = upkeep_schedule(queue)
    schedule.state.paused = True  # the test says when
    handle = await client.create_schedule(queue, schedule)
    async with Worker(
        client,
        task_queue=queue,
        workflows=[MemoryUpkeep],
        activities=steps.all(),  # type: ignore[arg-type]
        workflow_runner=WORKFLOW_RUNNER,
    ):
        rounds = []
        for number in (1, 2):
            await handle.trigger()

            async def ran(number: int = number) -> str | None:
                info = (await handle.describe()).info
                done = len(info.recent_actions) == number and not info.running_actions
                if not done or not isinstance(
                    action := info.recent_actions[-1].action, ScheduleActionExecutionStartWorkflow
                ):
                    return None
                return action.workflow_id

            rounds.append(await eventually(ran))
    await handle.delete()
    assert steps.since == [None, UNTIL]
    done = UpkeepDone(until=UNTIL, caught_up=3, expired=2, embedded=1, failed=("promote",))
    replayer = Replayer(workflows=[MemoryUpkeep], workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())
    for workflow_id in rounds:
        run = client.get_workflow_handle(workflow_id, result_type=UpkeepDone)
        assert await run.result() == done
        await replayer.replay_workflow(await run.fetch_history())
