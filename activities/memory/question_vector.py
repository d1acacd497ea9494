"""Compute a question's vector within a time limit. If it takes too long, the search uses words only."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from loom.activities.memory.ports import Embedder, EmbedderUnavailable

_log = logging.getLogger("loom.memory")

PATIENT: Final = 30.0
"""Maximum number of seconds that a person's question waits for its vector."""
IN_A_RUN: Final = 1.5
"""Maximum number of seconds that a run's question waits for its vector. The rest of the search takes little time."""


async def question_vector(embedder: Embedder | None, text: str, within: float) -> Sequence[float] | None:
    """Return the question's vector, or None if there is no embedder or it doesn't respond in time. Without a vector,
    the search uses words only.
    """
    if embedder is None:
        return None
    try:
        async with asyncio.timeout(within):
            return (await embedder.embed([text], query=True))[0]
    except (EmbedderUnavailable, TimeoutError) as error:
        _log.warning("searched_by_words_only", extra={"error": str(error) or f"no vector within {within:g} s"})
        return None
