"""A Loom worker whose memory writer takes over quickly what a dead one left."""

import asyncio
from contextlib import aclosing

import structlog
from temporalio.worker import Worker

from loom._worker import LoomPlugin
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import ANSWER_SECONDS, RedisInbox
from loom.activities.memory.writer import GROUP, writing
from loom.composition.build import parts_from
from loom.composition.load_settings import load_settings
from loom.composition.logs import configure_logs
from loom.composition.temporal_connection import connected

CLAIM_AFTER = 3.0


async def main() -> None:
    """Work until killed."""
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format)
    database = Database(settings.database_url or "", name="memory")
    inbox = RedisInbox(
        RedisConnection(settings.redis_url or "", answer_within=ANSWER_SECONDS), GROUP, claim_after=CLAIM_AFTER
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
