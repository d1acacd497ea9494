"""The shortest Temporal worker: `python -m bench.bare` serves a workflow with one activity, without Loom."""

import asyncio
import os
from datetime import timedelta
from typing import Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE: Final = "bench-bare"


@activity.defn
async def greet(name: str) -> str:
    """Return a greeting."""
    return f"Hello, {name}."


@workflow.defn
class Greeting:
    """Greets somebody."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Return the greeting."""
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=5))


async def main() -> None:
    """Run the worker until it is killed."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    await Worker(client, task_queue=QUEUE, workflows=[Greeting], activities=[greet]).run()


if __name__ == "__main__":
    asyncio.run(main())
