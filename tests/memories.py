"""Tasks to remember, and vectors by which texts with the same words are near each other."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import count
from math import sqrt
from typing import Any

from loom.activities.memory.ports import EmbedderUnavailable
from loom.domain.core.lexemes import lexemes_of
from loom.domain.core.tasks import Action, Task

_serial = count(1)


def task(text: str = "", *, importance: float | None = None, hours_ago: float = 0.0, **given: Any) -> Task:
    """A message with this text, unless something else is given."""
    number = next(_serial)
    run_id = given.pop("run_id", "run")
    return Task(
        **{
            "task_id": f"{run_id}/n{number}/node.message",
            "run_id": run_id,
            "root_run_id": run_id,
            "session_id": "session",
            "action": Action.MESSAGE,
            "created_at": datetime.now(UTC) - timedelta(hours=hours_ago) + timedelta(microseconds=number),
            "source_agent": "default",
            "parameters": {"text": text} if text else {},
            "metadata": {} if importance is None else {"importance": importance},
            **given,
        }
    )


class WordVectors:
    """An embedder: each word has a direction of its own, a text the sum of its words'."""

    def __init__(self, dimension: int = 64, model: str = "words") -> None:
        self.dimension = dimension
        self.model = model
        self.batches: list[int] = []
        self.is_away = False
        self.takes = 0.0
        """Seconds for a question."""

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        if self.is_away:
            raise EmbedderUnavailable("the embedder is away")
        if query:
            await asyncio.sleep(self.takes)
        else:
            self.batches.append(len(texts))
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        total = [0.0] * self.dimension
        for lexeme in lexemes_of(text):
            for at, byte in enumerate(blake2b(lexeme.encode(), digest_size=min(64, self.dimension)).digest()):
                total[at] += byte / 127.5 - 1
        length = sqrt(sum(part * part for part in total)) or 1.0
        return [part / length for part in total]
