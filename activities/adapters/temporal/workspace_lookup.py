"""Ask runs where they work. A run that has ended answers, too: a worker restores it from its history."""

from temporalio.client import Client

from loom.activities.adapters.temporal.errors import no_run
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import AGENT_RUN, CREW_RUN
from loom.domain.run.activity_payloads import RunWorkspace


class TemporalWorkspaceLookup:
    """Implements `WorkspaceLookup` with a Temporal client."""

    def __init__(self, client: Client) -> None:
        self._runs = TemporalRuns(client)

    async def workspace_of(self, run_id: str, task_queue: str) -> RunWorkspace | None:
        """See the port. Workers of another task queue could make up any answer."""
        described = await self._runs.described(run_id)
        if described.workflow_type not in (AGENT_RUN, CREW_RUN):
            raise no_run(run_id)
        if described.task_queue != task_queue:
            raise BadRequest(f"run {run_id!r} is on another task queue: {described.task_queue!r}", field="run_id")
        found: RunWorkspace | None = await self._runs.query(run_id, "workspace", RunWorkspace | None)
        return found
