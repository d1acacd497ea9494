"""Starts runs through a plain Temporal client, as any user of the machine can who reaches the server's port.

Run as a program with the server's address, a Namespace and a task queue. It reads a JSON list of `[workflow type,
request]` from standard input, and prints what came of each: the type and text of the error, or the run's status.
"""

import asyncio
import json
import os
import sys
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError


async def _outcome(client: Client, queue: str, workflow: str, request: dict[str, Any]) -> tuple[str, str]:
    name = f"stranger-{uuid4().hex[:8]}"
    try:
        result = await client.execute_workflow(workflow, request, id=name, task_queue=queue)
    except WorkflowFailureError as error:
        cause = error.cause
        return (cause.type or "", cause.message) if isinstance(cause, ApplicationError) else ("", repr(cause))
    return result["status"], result["output"]


async def _all(
    address: str, namespace: str, queue: str, requests: list[tuple[str, dict[str, Any]]]
) -> list[tuple[str, str]]:
    client = await Client.connect(address, namespace=namespace)
    return await asyncio.gather(*(_outcome(client, queue, *each) for each in requests))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_all(sys.argv[1], sys.argv[2], sys.argv[3], json.load(sys.stdin)))))
    sys.stdout.flush()
    os._exit(0)  # Temporal's SDK sometimes crashes the interpreter at its regular end
