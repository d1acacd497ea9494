"""Runs the other team's workflow with a worker, waits for the agent's question, and approves it."""

import asyncio
import json
import os
import sys
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from examples.other_workflows.python.workflows import RefundOrder


async def main() -> None:
    """Print the workflow's result as JSON."""
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "127.0.0.1:7233"))
    queue = f"refunds-{uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[RefundOrder]):
        handle = await client.start_workflow(
            "RefundOrder", args=[7, os.environ.get("LOOM_TASK_QUEUE", "loom")], id=f"refund-{uuid4()}", task_queue=queue
        )
        run = client.get_workflow_handle(await handle.query("agentRun"))
        pending = await asked(run)
        print(f"the agent asks for {pending['tool']}({json.dumps(pending['arguments'])})", file=sys.stderr)
        await handle.signal("decide", arg=True)
        print(json.dumps(await handle.result()))


async def asked(run: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """Wait until the agent's run waits for an approval, and return the call. Raises TimeoutError after 30 seconds."""
    async with asyncio.timeout(30):
        while True:
            try:
                if pending := (await run.query("status"))["pending_approvals"]:
                    call: dict[str, Any] = pending[0]
                    return call
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # the workflow has not started it yet
                    raise
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
