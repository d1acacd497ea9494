"""A Loom worker whose memory writer takes over quickly what a dead one left."""

import asyncio
from contextlib import aclosing

import structlog
from temporalio.worker import Worker

from activities.adapters.postgres import Database
from activities.adapters.postgres_memory import PostgresMemory
from activities.adapters.redis_inbox import ANSWER_SECONDS, RedisInbox
from activities.adapters.redis_link import RedisLink
from activities.memory_writer import GROUP, writing
from deploy.connection import connected
from deploy.logs import configure_logs
from deploy.settings import load_settings
from loom_parts.assembly import parts_from
from worker import LoomPlugin

CLAIM_AFTER = 3.0


async def main() -> None:
    """Work until killed."""
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format)
    database = Database(settings.database_url or "", name="memory")
    inbox = RedisInbox(
        RedisLink(settings.redis_url or "", answer_within=ANSWER_SECONDS), GROUP, claim_after=CLAIM_AFTER
    )
    async with (
        connected(settings) as client,
        parts_from(settings) as parts,
        aclosing(database),
        aclosing(inbox),
        writing(inbox, PostgresMemory(database)),
        Worker(client, task_queue=settings.task_queue, plugins=[LoomPlugin(parts, client, settings)]),
    ):
        structlog.get_logger("loom.worker").info("worker_ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
