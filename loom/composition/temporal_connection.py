"""Connect to the Temporal server named in the settings."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from itertools import chain, repeat
from typing import Final

import structlog
from temporalio.client import Client, HttpConnectProxyConfig
from temporalio.converter import DataConverter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError

from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.activities.adapters.signing.client import SigningClient
from loom.activities.adapters.signing.key_file import KeyFile
from loom.activities.adapters.temporal.errors import is_refusal, no_server
from loom.composition.settings import Settings
from loom.workflows.payload_converter import data_converter

_log = structlog.get_logger("loom.worker")

RECONNECT: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach a server. The last number is repeated."""


async def connect(
    settings: Settings, *, converter: DataConverter = DataConverter.default, runtime: Runtime | None = None
) -> Client:
    """Return a client that is connected to the configured server, and signs requests if it finds the key.

    Raises RuntimeError or RPCError if the server doesn't respond.
    """
    key, address = settings.temporal_api_key, settings.temporal_address
    # Behind a Unix socket, the SDK needs any address with a port. The socket leads to one server only.
    is_socket = address.startswith("unix:")
    return await Client.connect(
        "localhost:7233" if is_socket else address,
        http_connect_proxy_config=HttpConnectProxyConfig(target_host=address) if is_socket else None,
        namespace=settings.temporal_namespace,
        api_key=key.get_secret_value() if key else None,
        tls=settings.temporal_tls,
        data_converter=converter,
        runtime=runtime or (_without_proxy_warning() if is_socket else None),
        interceptors=[SigningClient(KeyFile(settings.key_path).read, converter.payload_converter)],
    )


@cache
def _without_proxy_warning() -> Runtime:
    """Return a runtime that doesn't warn that a connection through a proxy resolves no names."""
    usual = LoggingConfig.default.filter
    filters = usual if isinstance(usual, str) else usual.formatted()
    return Runtime(
        telemetry=TelemetryConfig(logging=LoggingConfig(filter=f"{filters},temporal_sdk_bridge::client=ERROR"))
    )


@asynccontextmanager
async def connected(
    settings: Settings, runtime: Runtime | None = None, *, wait_for_server: bool = False
) -> AsyncIterator[Client]:
    """Yield a connected client with Loom's payload converter, which can read externally stored payloads.

    The payload store is closed when the `with` block ends. Raises UnreachableError if no server responds, unless the
    caller waits for it, and if the server refuses this client.
    """
    storage = PostgresPayloads(settings.database_url) if settings.database_url else None
    connecting = partial(connect, settings, converter=data_converter(storage), runtime=runtime)
    try:
        yield await _connection(connecting, settings.temporal_address, wait_for_server=wait_for_server)
    finally:
        if storage is not None:
            await storage.aclose()


async def _connection(connecting: Callable[[], Awaitable[Client]], address: str, *, wait_for_server: bool) -> Client:
    for pause in chain(RECONNECT, repeat(RECONNECT[-1])):
        try:
            return await connecting()
        except (RuntimeError, RPCError) as error:
            unreachable = no_server(address, error)
            if not wait_for_server or is_refusal(error):
                raise unreachable from error
            _log.warning("waiting_for_temporal", reason=unreachable.message, next_try_in=pause)
        await asyncio.sleep(pause)
    raise AssertionError  # `repeat` never ends
