"""Read runs from their histories, without a worker: their tasks, and the report of a run with its sub-agents."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.client import Client
from temporalio.service import RPCError

from loom.activities.adapters.temporal.errors import answered, no_run, unanswered
from loom.activities.adapters.temporal.history_facts import TemporalHistories
from loom.activities.memory.backfill import UnreadableHistory
from loom.domain.core.errors import RunNotFoundError, UnreachableError
from loom.domain.core.tasks import Action, Task
from loom.domain.history.run_report import RunReport, run_report
from loom.domain.history.task_rebuilding import Mask, tasks_of


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTasks:
    """A run's tasks, rebuilt from its history."""

    tasks: tuple[Task, ...]
    """Oldest first."""
    began: datetime | None
    """When the run was started, by the server's clock."""

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
        self._histories = TemporalHistories(client, "")
        self._mask = mask

    async def tasks(self, run_id: str) -> RecordedTasks:
        """Return the run's tasks. Raises RunNotFoundError if the server no longer has the run's history."""
        tasks: dict[str, Task] = {}
        began: datetime | None = None
        try:
            with answered(run_id):
                async for execution in self._histories.executions(run_id):
                    made = tasks_of(execution.facts, self._mask, earlier=execution.earlier)
                    tasks = {**{task.task_id: task for task in made}, **tasks}
                    began = execution.began
        except UnreadableHistory as error:
            if "no longer has" in str(error):
                raise no_run(run_id) from error
            raise UnreachableError(f"{error}. Set LOOM_DATABASE_URL to the database of its worker") from error
        except RPCError as error:
            raise unanswered(error, run_id) from error
        ordered = sorted(tasks.values(), key=lambda task: task.created_at)
        return RecordedTasks(tasks=tuple(ordered), began=began)

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
            now=now,
            began=recorded.began,
            sub_agents=reports,
            advised=(*recorded.tasks, *below),
        )
        return report, (*recorded.tasks, *below)
