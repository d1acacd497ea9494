"""The histories of a round's runs: read from a server that may just be coming back, replayed, and kept."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError

from loom.composition.replay import Replay, replay
from loom.domain.core.errors import UnreachableError
from loom.testing.harness import HANGS_AFTER

T = TypeVar("T")

KEEP: Final = Path(tempfile.gettempdir()) / "loom-chaos-wrong"
"""Where histories of wrong runs are kept, unless the command line says otherwise."""
BACK_WITHIN: Final = 300.0
"""Seconds within which everything that was killed answers again."""


async def patiently(ask: Callable[[], Awaitable[T]], within: float = BACK_WITHIN) -> T:
    """Ask until a server and a worker answer."""
    deadline = monotonic() + within
    while True:
        try:
            return await ask()
        except (UnreachableError, RPCError, TimeoutError):
            if monotonic() > deadline:
                raise
        await asyncio.sleep(0.5)


async def divergences(
    histories: Iterable[WorkflowHistory], converter: DataConverter
) -> list[tuple[WorkflowHistory, str]]:
    """Return the histories that today's code can't replay, and why not."""
    given = {history.run_id: history for history in histories}

    async def each() -> AsyncIterator[WorkflowHistory]:
        for history in given.values():
            yield history

    wrong: list[tuple[WorkflowHistory, str]] = []
    outcomes, left = replay(each(), converter), dict(given)
    with suppress(StopAsyncIteration):
        while True:
            outcome = await _next(outcomes)
            if outcome is None:  # it can't be stopped, so the others aren't replayed
                stuck = next(iter(left.values()))
                return [*wrong, (stuck, f"its replay hangs, and {len(left) - 1} others weren't replayed")]
            history = left.pop(outcome.execution)
            if outcome.error is not None:
                wrong.append((history, outcome.error))
    return wrong


async def _next(outcomes: AsyncIterator[Replay]) -> Replay | None:
    """Return the next outcome, or None if there is none for a long time."""
    task = asyncio.ensure_future(anext(outcomes))
    await asyncio.wait({task}, timeout=HANGS_AFTER)
    return task.result() if task.done() else None


def keep(histories: Iterable[WorkflowHistory], folder: Path) -> str:
    """Write histories to files in this folder, and return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for history in histories:
        file = folder / f"{history.workflow_id.replace('/', '_')}.{history.run_id[:8]}.json"
        file.write_text(history.to_json())
        files.append(str(file))
    return ", ".join(files)
