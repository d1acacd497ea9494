"""Another team's workflow. It knows Loom by three names only: the workflow type, the task queue and the signal."""

from typing import Any

from temporalio import workflow


@workflow.defn
class RefundOrder:
    """Let an agent pay an order back, once a person has decided."""

    def __init__(self) -> None:
        self._approved: bool | None = None

    @workflow.run
    async def run(self, order: int, loom_queue: str) -> dict[str, Any]:
        """Start the agent, pass the decision on, and return what came of it."""
        run = await workflow.start_child_workflow(
            "AgentRun",
            {"task": f"Pay order {order} back", "agent": "support", "permissions": {"refund": "ask"}},
            id=self.agent_run(),
            task_queue=loom_queue,
        )
        await workflow.wait_condition(lambda: self._approved is not None)
        await run.signal("approve" if self._approved else "deny", {"by": "the refund workflow"})
        result: dict[str, Any] = await run
        return {"status": result["status"], "output": result["output"], "toolCalls": result["tool_calls"]}

    @workflow.signal
    def decide(self, approved: bool) -> None:
        """Approve or deny the agent's call."""
        self._approved = approved

    @workflow.query(name="agentRun")
    def agent_run(self) -> str:
        """Return the id of the agent's run."""
        return f"{workflow.info().workflow_id}-agent"
