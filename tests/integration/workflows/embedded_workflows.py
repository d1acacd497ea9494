"""A team's own workflow beside Loom's: it starts an agent as a child, by name, and has an activity of its own."""

from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow

from loom import RunResult


@dataclass(frozen=True)
class Note:
    """A value of the team's own, with a default that other readers do not know."""

    text: str
    author: str = "nobody"


@activity.defn
async def decorate(note: Note) -> Note:
    """Put brackets around a note."""
    return Note(text=f"[{note.text}]", author=note.author)


@workflow.defn
class Nightly:
    """Asks an agent, then does something of its own."""

    @workflow.run
    async def run(self, task: str) -> Note:
        """Run."""
        result = await workflow.execute_child_workflow(
            "AgentRun", {"task": task}, id=f"{workflow.info().workflow_id}-agent", result_type=RunResult
        )
        return await workflow.execute_activity(
            decorate, Note(text=result.output), start_to_close_timeout=timedelta(seconds=10)
        )
