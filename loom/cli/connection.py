"""Connect commands to the server. Each command uses one connection and one event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from loom.activities.ports import StreamUnavailable
from loom.cli.logs import silence
from loom.client import LoomClient
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.domain.core.errors import UnreachableError

T = TypeVar("T")


def with_client(work: Callable[[LoomClient], Awaitable[T]], settings: Settings | None = None) -> T:
    """Call `work` with a connected client. Raises UnreachableError if the server or the stream doesn't respond."""
    chosen = settings or load_settings()
    silence()

    async def connected() -> T:
        async with LoomClient.connected(chosen) as loom:
            return await work(loom)

    try:
        return asyncio.run(connected())
    except StreamUnavailable as error:
        raise UnreachableError(f"the live stream is unavailable: {error}") from error
