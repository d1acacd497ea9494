"""Index the knowledge bases that an app registers. A worker indexes each folder when it starts."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog

from loom.activities.adapters.documents.readers import SeparateDocumentReader
from loom.activities.knowledge.ingest import Ingestion
from loom.activities.memory.writer import patiently
from loom.composition.worker_parts import WorkerParts
from loom.domain.core.errors import LoomError
from loom.domain.memory.knowledge import KnowledgeFolder

_log = structlog.get_logger("loom.knowledge")


@asynccontextmanager
async def knowledge_ingestion(parts: WorkerParts) -> AsyncIterator[None]:
    """Index changed files in the knowledge base folders while the worker is running.

    If the worker stops before the indexing is complete, the next worker continues it.
    """
    folders = parts.registry.knowledge.values()
    if not folders or parts.knowledge is None:
        if folders:
            bases = [folder.name for folder in folders]
            _log.warning("knowledge_not_taken_in", bases=bases, why="it is kept in Postgres: set LOOM_DATABASE_URL")
        yield
        return
    ingestion = Ingestion(
        parts.knowledge, reader=SeparateDocumentReader(), redact=parts.sanitizer.clean, embedder=parts.embedder
    )
    work = asyncio.create_task(_in_turn(ingestion, folders))
    try:
        yield
    finally:
        work.cancel()
        await asyncio.wait({work})


async def _in_turn(ingestion: Ingestion, folders: Iterable[KnowledgeFolder]) -> None:
    for folder in folders:
        take_in = partial(ingestion.take_in, Path(folder.path), folder.name)
        try:
            done = await patiently(take_in)
        except LoomError as error:
            _log.warning("knowledge_not_taken_in", bases=[folder.name], origin=folder.origin, why=error.message)
        except Exception as error:  # noqa: BLE001 - an unreadable folder must not stop the others
            _log.error("knowledge_not_taken_in", bases=[folder.name], origin=folder.origin, exc_info=error)
        else:
            skipped = len(done.skipped)
            counts = {name: getattr(done, name) for name in ("added", "changed", "removed", "unchanged", "waiting")}
            _log.info("knowledge_taken_in", base=folder.name, folder=folder.path, skipped=skipped, **counts)
