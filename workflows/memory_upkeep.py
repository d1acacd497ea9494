"""The `MemoryUpkeep` workflow, which keeps memory complete and within its limits while a task queue has workers.

Each task queue has one long-running workflow instead of a schedule that starts a workflow every few minutes. The list
of workflows in the Web UI therefore shows one upkeep entry, not hundreds per day. A worker signals the workflow
when runs have ended.
"""

from collections.abc import Awaitable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.workflow import ActivityConfig, ContinueAsNewVersioningBehavior

from loom.activities.child_runs import ChildRuns
from loom.activities.collection import Collection
from loom.activities.memory.backfill import CatchUp
from loom.activities.memory.upkeep import MemoryKeeper
from loom.domain.core.errors import BadRequest
from loom.domain.core.stored_data import Collected
from loom.domain.memory.backfill import CatchUpRequest, KeptMemories, UpkeepDone, UpkeepRequest
from loom.workflows.changes import ONE_ACTIVITY_KEEPS, RUNS_THAT_ARE_GONE, has_change
from loom.workflows.validation import read_upkeep_request

T = TypeVar("T")

EVERY: Final = timedelta(minutes=5)
"""The interval between checks for tasks that the bus may have lost and for expired memories."""
SETTLED: Final = timedelta(seconds=2)
"""The minimum time between the starts of two rounds. A round then includes the runs that end at about the same time."""

STEP: Final = ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),
    schedule_to_start_timeout=timedelta(minutes=10),
    heartbeat_timeout=timedelta(seconds=15),
    retry_policy=RetryPolicy(maximum_attempts=2),
)
"""Options for each step. A step that fails twice runs again in the next round."""


@workflow.defn(name="MemoryUpkeep")
class MemoryUpkeep:
    """Runs rounds of independent steps. A failed step doesn't prevent the other steps from running.

    With worker versioning, it moves to the current version after each round.
    """

    @workflow.init
    def __init__(self, request: object = None, *_: object) -> None:
        self._request: UpkeepRequest | BadRequest
        self._last = UpkeepDone()
        self._awake = False
        self._looked_back: datetime | None = None
        self._began = workflow.now()
        try:
            self._request = read_upkeep_request(request)
            self._last = UpkeepDone(until=self._request.since)
        except BadRequest as error:  # raised here, it would fail the workflow task again and again
            self._request = error

    @workflow.run
    async def run(self, request: object = None, *_: object) -> None:
        """Run rounds until the workflow is cancelled. Fail if the input is invalid."""
        match self._request:
            case BadRequest() as error:
                raise ApplicationError(error.message, type="BadRequest", non_retryable=True)
            case UpkeepRequest() as asked:
                await self._run(asked)

    async def _run(self, request: UpkeepRequest) -> None:
        for number in range(1, request.rounds + 1):
            self._began = workflow.now()
            self._last = await self._round(looks_back=self._looks_back())
            workflow.set_current_details(_told(self._last, number))
            await self._pause()
            if workflow.info().is_target_worker_deployment_version_changed():
                break
        workflow.continue_as_new(
            replace(request, since=self._last.until),
            initial_versioning_behavior=ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
        )

    def _looks_back(self) -> bool:
        """Whether to look for what was missed, which is done every five minutes."""
        now = workflow.now()
        if self._looked_back is not None and now < self._looked_back + EVERY:
            return False
        self._looked_back = now
        return True

    @workflow.signal(name="runs_ended")
    def runs_ended(self, *_: object) -> None:
        """Record that runs have ended, so that the next round starts early and summarizes them."""
        self._awake = True

    @workflow.signal(name="upgrade")
    def upgrade(self, *_: object) -> None:
        """Wake the workflow, so that it continues on the current version of the worker's deployment."""
        self._awake = True

    @workflow.query(name="status")
    def status(self, *_: object) -> UpkeepDone:
        """Return the results of the most recent round."""
        return self._last

    async def _round(self, *, looks_back: bool) -> UpkeepDone:
        """Recover tasks that the bus lost, summarize runs, remove expired memories, and embed the remaining ones.

        Also abort sub-agents whose parent no longer runs, and delete the data of runs that have left the server.
        """
        failed: list[str] = []
        until, caught_up, collected = self._last.until, 0, None
        if looks_back and has_change(RUNS_THAT_ARE_GONE):
            await _tried("abort_orphans", workflow.execute_activity_method(ChildRuns.abort_orphans, **STEP), failed)
            collected = await _tried(
                "collect", workflow.execute_activity_method(Collection.collect_stored_data, **STEP), failed
            )
        if looks_back:
            request = CatchUpRequest(since=until)
            caught = await _tried(
                "catch_up", workflow.execute_activity_method(CatchUp.catch_up, request, **STEP), failed
            )
            until, caught_up = (caught.until, caught.tasks) if caught else (until, 0)
        kept = await self._keep(failed)
        return UpkeepDone(
            until=until,
            caught_up=caught_up,
            promoted=kept.promoted,
            expired=kept.expired,
            embedded=kept.embedded,
            collected=collected or Collected(),
            failed=(*failed, *kept.failed),
        )

    async def _keep(self, failed: list[str]) -> KeptMemories:
        if has_change(ONE_ACTIVITY_KEEPS):
            kept = await _tried("keep", workflow.execute_activity_method(MemoryKeeper.keep_memories, **STEP), failed)
            kept = kept or KeptMemories()
            self._awake = self._awake or kept.has_more
            return kept
        promoted = await _tried(
            "promote", workflow.execute_activity_method(MemoryKeeper.promote_memories, **STEP), failed
        )
        expired = await _tried("expire", workflow.execute_activity_method(MemoryKeeper.expire_memories, **STEP), failed)
        embedded = await _tried("embed", workflow.execute_activity_method(MemoryKeeper.embed_memories, **STEP), failed)
        return KeptMemories(promoted=promoted or 0, expired=expired or 0, embedded=embedded or 0)

    async def _pause(self) -> None:
        try:
            await workflow.wait_condition(lambda: self._awake, timeout=EVERY, timeout_summary="the next round")
        except TimeoutError:
            return
        if (wait := self._too_early() if has_change(ONE_ACTIVITY_KEEPS) else SETTLED) > timedelta(0):
            await workflow.sleep(wait)
        self._awake = False

    def _too_early(self) -> timedelta:
        """Return how long the next round must wait, or zero or less if it may start."""
        return self._began + SETTLED - workflow.now()


async def _tried(step: str, work: Awaitable[T], failed: list[str]) -> T | None:
    try:
        return await work
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        workflow.logger.warning("memory upkeep: %s failed: %s", step, error.cause)
        failed.append(step)
        return None


def _told(last: UpkeepDone, number: int) -> str:
    wrong = f" The next round repeats the failed steps: {', '.join(last.failed)}." if last.failed else ""
    gone = last.collected
    deleted = (
        f" Deleted {gone.artifacts} artifacts, {gone.effects} effects and {gone.payloads} payloads of runs that have"
        " left the server."
        if gone != Collected()
        else ""
    )
    return (
        f"Keeps the memory of this task queue. Round {number}: {last.caught_up} tasks caught up, {last.promoted}"
        f" promoted, {last.expired} expired, {last.embedded} embedded.{deleted}{wrong}"
    )


def upkeep_id(task_queue: str) -> str:
    """Return the id of the workflow that maintains memory for this task queue's workers."""
    return f"loom-memory-upkeep-{task_queue}"
