"""A Loom worker whose memory writer takes over quickly what a dead one left."""

import asyncio
from contextlib import aclosing

import structlog

from loom import worker
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import ANSWER_SECONDS, RedisInbox
from loom.activities.memory.writer import GROUP, MemoryWriter
from loom.composition.load_settings import load_settings
from loom.composition.logs import configure_logs

CLAIM_AFTER = 3.0


async def main() -> None:
    """Work until killed."""
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format)
    database = Database(settings.database_url or "", name="memory")
    inbox = RedisInbox(
        RedisConnection(settings.redis_url or "", answer_within=ANSWER_SECONDS), GROUP, claim_after=CLAIM_AFTER
    )
    async with aclosing(database), aclosing(inbox), worker(settings):
        structlog.get_logger("loom.worker").info("worker_ready")
        await MemoryWriter(inbox, PostgresMemory(database)).run()


if __name__ == "__main__":
    asyncio.run(main())
