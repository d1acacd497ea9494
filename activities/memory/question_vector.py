"""The vector of a question, unless it takes too long: a search by words finds something too."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from loom.activities.memory.ports import Embedder, EmbedderUnavailable

_log = structlog.get_logger("loom.memory")

PATIENT: Final = 30.0
"""Seconds that a person's question waits for its vector."""
IN_A_RUN: Final = 1.5
"""The same for a run's question. The search needs little of the rest of its time."""


async def question_vector(embedder: Embedder | None, text: str, within: float) -> Sequence[float] | None:
    """None without an embedder, or if it does not respond in time. The search then uses words only."""
    if embedder is None:
        return None
    try:
        async with asyncio.timeout(within):
            return (await embedder.embed([text], query=True))[0]
    except (EmbedderUnavailable, TimeoutError) as error:
        _log.warning("searched_by_words_only", error=str(error) or f"no vector within {within:g} s")
        return None
