"""Workflow `MemoryUpkeep`: one round of keeping memory whole and within its limits; a schedule starts one a minute."""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from temporalio import workflow
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityConfig

from activities.memory.upkeep import MemoryKeeper
from activities.rebuilding import CatchUp
from loom_domain.catching_up import CatchUpRequest

T = TypeVar("T")

EVERY: Final = timedelta(minutes=1)
GIVEN_UP_AFTER: Final = timedelta(hours=2)
"""For a round whose workers have gone."""

UPKEEP: Final = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=timedelta(seconds=15),
    retry_policy=RetryPolicy(maximum_attempts=2),
)
"""Two attempts: what fails now is due again in a minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpkeepDone:
    """What one round did; the next one begins where it ended."""

    until: datetime | None = None
    """Memory has everything that happened until then."""
    caught_up: int = 0
    promoted: int = 0
    expired: int = 0
    embedded: int = 0
    failed: tuple[str, ...] = ()
    """The steps that did not come to their end; a later round takes them up."""


@workflow.defn(name="MemoryUpkeep")
class MemoryUpkeep:
    """One round. A step that fails keeps no other from its work: none relies on another's."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self._failed: list[str] = []

    @workflow.run
    async def run(self) -> UpkeepDone:
        """Take in what the bus lost, summarise before anything expires, embed what is left."""
        since = _last_until()
        caught = await self._tried(
            "catch_up",
            workflow.execute_activity_method(CatchUp.catch_up, CatchUpRequest(since=since), **UPKEEP),
        )
        promoted = await self._tried(
            "promote", workflow.execute_activity_method(MemoryKeeper.promote_memories, **UPKEEP)
        )
        expired = await self._tried("expire", workflow.execute_activity_method(MemoryKeeper.expire_memories, **UPKEEP))
        embedded = await self._tried("embed", workflow.execute_activity_method(MemoryKeeper.embed_memories, **UPKEEP))
        return UpkeepDone(
            until=caught.until if caught else since,
            caught_up=caught.tasks if caught else 0,
            promoted=promoted or 0,
            expired=expired or 0,
            embedded=embedded or 0,
            failed=tuple(self._failed),
        )

    async def _tried(self, step: str, work: Awaitable[T]) -> T | None:
        try:
            return await work
        except ActivityError as error:
            workflow.logger.warning("memory upkeep: %s failed: %s", step, error.cause)
            self._failed.append(step)
            return None


def schedule_id(task_queue: str) -> str:
    """Names the schedule of the workers of a queue; the ids of its workflows begin with it."""
    return f"loom-memory-upkeep-{task_queue}"


def upkeep_schedule(task_queue: str) -> Schedule:
    """Every minute, never two at once; a worker creates it where it is missing."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            MemoryUpkeep.run, id=schedule_id(task_queue), task_queue=task_queue, execution_timeout=GIVEN_UP_AFTER
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=EVERY)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=EVERY),
    )


def _last_until() -> datetime | None:
    if not workflow.has_last_completion_result():
        return None
    last = workflow.get_last_completion_result(UpkeepDone)
    return last.until if isinstance(last, UpkeepDone) else None
