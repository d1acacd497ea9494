"""Connect to the Temporal server named in the settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from temporalio.client import Client, HttpConnectProxyConfig
from temporalio.converter import DataConverter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError

from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.activities.adapters.signing.client import SigningClient
from loom.activities.adapters.signing.key_file import KeyFile
from loom.activities.adapters.temporal.errors import no_server
from loom.composition.settings import Settings
from loom.workflows.payload_converter import data_converter


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
async def connected(settings: Settings, runtime: Runtime | None = None) -> AsyncIterator[Client]:
    """Yield a connected client with Loom's payload converter, which can read externally stored payloads.

    The payload store is closed when the `with` block ends. Raises UnreachableError if no server responds.
    """
    storage = PostgresPayloads(settings.database_url) if settings.database_url else None
    try:
        try:
            client = await connect(settings, converter=data_converter(storage), runtime=runtime)
        except (RuntimeError, RPCError) as error:
            raise no_server(settings.temporal_address, error) from error
        yield client
    finally:
        if storage is not None:
            await storage.aclose()
