"""Commands that talk to the server: one connection, one event loop, and no log line in between."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from loom.domain.core.errors import UnreachableError

if TYPE_CHECKING:
    from loom.client import LoomClient
    from loom.composition.settings import Settings

T = TypeVar("T")


def with_client(work: "Callable[[LoomClient], Awaitable[T]]", settings: "Settings | None" = None) -> T:
    """Do `work` with a connected client; raises UnreachableError when what it needs does not answer."""
    import asyncio  # noqa: PLC0415 - heavy: 2 s that `loom --help` does not have

    from loom.activities.ports import StreamUnavailable  # noqa: PLC0415
    from loom.client import LoomClient  # noqa: PLC0415
    from loom.composition.load_settings import load_settings  # noqa: PLC0415

    chosen = settings or load_settings()
    quiet_logs()

    async def connected() -> T:
        async with LoomClient.connected(chosen) as loom:
            return await work(loom)

    try:
        return asyncio.run(connected())
    except StreamUnavailable as error:
        raise UnreachableError(f"the live stream is away: {error}") from error


def quiet_logs() -> None:
    """What the adapters log is said by the commands themselves; structlog's default is standard output."""
    import logging  # noqa: PLC0415
    import sys  # noqa: PLC0415

    import structlog  # noqa: PLC0415

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
