"""Workflow `CrewRun`: several agents on one task, with everything that a run has: signals, queries, stream, budget.

A crew is an agent whose turns its definition decides instead of a model. Each turn assigns work to members, which are
child runs. Everything that applies to a run and its sub-agents therefore applies to a crew.
"""

from temporalio import workflow

from loom.domain.core.requests import RunResult
from loom.workflows.agent_run import AgentRun


@workflow.defn(name="CrewRun")
class CrewRun(AgentRun):
    """One run of a crew; its id is the workflow id."""

    @workflow.init
    def __init__(self, request: object = None, *carried: object) -> None:
        super().__init__(request, *carried)

    @workflow.run
    async def run(self, request: object = None, *carried: object) -> RunResult:
        """Perform one action after the other until the crew is finished."""
        return await super().run(request, *carried)
