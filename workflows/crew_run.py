"""Workflow `CrewRun`: several agents work on one task, with the signals, queries, stream, and budget of a run.

A crew works like an agent, but its definition decides each turn instead of a model. Each turn assigns work to members,
which are child runs. Everything that applies to a run and its sub-agents therefore also applies to a crew.
"""

from temporalio import workflow

from loom.domain.core.requests import RunResult
from loom.workflows.agent_run import AgentRun


@workflow.defn(name="CrewRun")
class CrewRun(AgentRun):
    """One run of a crew. The run id is the workflow id."""

    @workflow.init
    def __init__(self, request: object = None, *carried: object) -> None:
        super().__init__(request, *carried)

    @workflow.run
    async def run(self, request: object = None, *carried: object) -> RunResult:
        """Perform actions one at a time until the crew is finished."""
        return await super().run(request, *carried)
