"""Read runs from their histories, without a worker: their tasks, and the report of a run with its sub-agents."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowFailureError
from temporalio.service import RPCError

from loom.activities.adapters.temporal.errors import answered, no_run, unanswered
from loom.activities.adapters.temporal.history_facts import TemporalHistories
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.memory.histories import UnreadableHistory
from loom.domain.core.errors import RunNotFoundError, UnreachableError
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import FINAL_ACTIONS, Action, Task
from loom.domain.history.facts import ActivityAttempt
from loom.domain.history.run_report import RunReport, run_report
from loom.domain.history.task_rebuilding import Mask, tasks_of
from loom.visibility import failed_result, summary_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTasks:
    """A run's tasks, rebuilt from its history."""

    tasks: tuple[Task, ...]
    """Oldest first."""
    began: datetime | None
    """When the run was started, by the server's clock."""
    ended: datetime | None = None
    """When the run ended, by the server's clock. None if it hasn't."""
    cut_short: RunResult | None = None
    """The result of a run that has no result of its own, because the server ended it, for example on `terminate`."""

    @property
    def children(self) -> Mapping[str, Task]:
        """The tasks that handed over work, by the id of the run that took it."""
        return {
            str(task.parameters["child_run_id"]): task
            for task in self.tasks
            if task.action is Action.EXECUTE and task.parameters.get("child_run_id")
        }


class RecordedRuns:
    """The histories of runs. Secrets in tool arguments are masked."""

    def __init__(self, client: Client, mask: Mask) -> None:
        self._client = client
        self._runs = TemporalRuns(client)
        self._histories = TemporalHistories(client, "")
        self._mask = mask

    async def tasks(self, run_id: str) -> RecordedTasks:
        """Return the run's tasks. Raises RunNotFoundError if the server no longer has the run's history."""
        tasks: dict[str, Task] = {}
        began: datetime | None = None
        # Before the history, which then has the run's last events if the run has ended.
        description = await self._runs.described(run_id)
        try:
            with answered(run_id):
                async for execution in self._histories.executions(run_id):
                    at_work = () if tasks else _at_work(execution.unfinished, description)
                    made = tasks_of((*execution.facts, *at_work), self._mask, earlier=execution.earlier)
                    tasks |= {task.task_id: task for task in made}  # the earlier execution, if both have a task
                    began = execution.began
        except UnreadableHistory as error:
            if "no longer has" in str(error):
                raise no_run(run_id) from error
            raise UnreachableError(f"{error}. Set LOOM_DATABASE_URL to the database of its worker") from error
        except RPCError as error:
            raise unanswered(error, run_id) from error
        ordered = sorted(tasks.values(), key=lambda task: task.created_at)
        has_result = bool(ordered) and ordered[-1].action in FINAL_ACTIONS
        cut_short = None if has_result or description.close_time is None else await self._cut_short(description)
        return RecordedTasks(tasks=tuple(ordered), began=began, ended=description.close_time, cut_short=cut_short)

    async def _cut_short(self, description: WorkflowExecutionDescription) -> RunResult | None:
        handle = self._client.get_workflow_handle(description.id, run_id=description.run_id)
        try:
            await handle.result(follow_runs=False)
        except WorkflowFailureError as error:
            return replace(failed_result(error), status=RunStatus(summary_of(description).status))
        return None

    async def report(self, run_id: str) -> RunReport:
        """Return the run's report, with those of its sub-agents. Raises RunNotFoundError."""
        report, _ = await self._report(run_id, datetime.now(UTC))
        return report

    async def _report(self, run_id: str, now: datetime) -> tuple[RunReport, tuple[Task, ...]]:
        recorded = await self.tasks(run_id)
        reports: dict[str, RunReport] = {}
        below: tuple[Task, ...] = ()
        for child in recorded.children:
            try:
                reports[child], tasks = await self._report(child, now)
            except RunNotFoundError:
                continue  # not started yet, or already deleted; the parent's own figures still describe it
            below = (*below, *tasks)
        report = run_report(
            recorded.tasks,
            run_id=run_id,
            now=recorded.ended or now,
            began=recorded.began,
            sub_agents=reports,
            advised=(*recorded.tasks, *below),
        )
        if (end := recorded.cut_short) is not None:
            report = replace(report, status=end.status, error=asdict(end.error) if end.error else None)
        return report, (*recorded.tasks, *below)


def _at_work(
    unfinished: Mapping[str, ActivityAttempt], description: WorkflowExecutionDescription
) -> tuple[ActivityAttempt, ...]:
    """Return the activities that workers have begun and not ended. A history doesn't say when they began.

    If the run has ended meanwhile, nothing says so, and they count from when they were scheduled.
    """
    if description.close_time is not None:
        return tuple(unfinished.values())
    pending = {each.activity_id: each for each in description.raw_description.pending_activities}
    return tuple(
        replace(attempt, began=pending[name].last_started_time.ToDatetime(tzinfo=UTC))
        for name, attempt in unfinished.items()
        if name in pending and pending[name].state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    )
