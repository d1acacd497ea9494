"""The vector of a question, as long as that does not keep anybody waiting: words alone find something, too."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from loom.activities.memory.ports import Embedder, EmbedderUnavailable

_log = structlog.get_logger("loom.memory")

PATIENT: Final = 30.0
"""Seconds that a question of people waits for its vector."""
IN_A_RUN: Final = 1.5
"""The same for one of a run; of the rest that it has, the search needs little."""


async def question_vector(embedder: Embedder | None, text: str, within: float) -> Sequence[float] | None:
    """None where there is no embedder, or none that answers in time: words alone are searched then."""
    if embedder is None:
        return None
    try:
        async with asyncio.timeout(within):
            return (await embedder.embed([text], query=True))[0]
    except (EmbedderUnavailable, TimeoutError) as error:
        _log.warning("searched_by_words_only", error=str(error) or f"no vector within {within:g} s")
        return None
