"""A workflow that starts an agent as a child and works on with its answer."""

from datetime import timedelta

from activities.notes import Note, archive
from temporalio import workflow

from loom import RunResult


@workflow.defn
class Nightly:
    """Ask an agent, and archive what it answers."""

    @workflow.run
    async def run(self, task: str) -> Note:
        """Run."""
        result = await workflow.execute_child_workflow(
            "AgentRun",
            {"task": task, "permissions": {"shelf_mark": "allow"}},
            id=f"{workflow.info().workflow_id}-agent",
            result_type=RunResult,
        )
        return await workflow.execute_activity(
            archive, Note(text=result.output), start_to_close_timeout=timedelta(seconds=10)
        )
