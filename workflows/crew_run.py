"""The `CrewRun` workflow, which runs several agents on one task.

A crew run has the same signals, queries, stream, and budget as an agent run.

A crew works like an agent, but its definition, not a model, decides what happens in each turn. Each turn assigns
work to members, which are child runs. Crews therefore have all features and limits of a run with sub-agents.
"""

from temporalio import workflow

from loom.domain.core.requests import RunResult
from loom.workflows.agent_run import AgentRun


@workflow.defn(name="CrewRun")
class CrewRun(AgentRun):
    """One crew run. Its id is the workflow id."""

    @workflow.init
    def __init__(self, request: object = None, *carried: object) -> None:
        super().__init__(request, *carried)

    @workflow.run
    async def run(self, request: object = None, *carried: object) -> RunResult:
        """Perform actions one at a time until the run is finished."""
        return await super().run(request, *carried)
