"""The project's worker: its own workflows and activities, and Loom's beside them."""

import asyncio

from activities.notes import archive
from temporalio.client import Client
from temporalio.worker import Worker
from tools import app
from workflows.nightly import Nightly

from loom import LoomPlugin, load_settings


async def main() -> None:
    """Work until killed."""
    settings = load_settings()
    client = await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace, plugins=[LoomPlugin(settings, app=app)])
    async with Worker(client, task_queue=settings.task_queue, workflows=[Nightly], activities=[archive]):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
