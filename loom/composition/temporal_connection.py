"""Connect to the Temporal server named in the settings."""

import asyncio
import atexit
import ctypes
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from itertools import chain, repeat
from pathlib import Path
from types import FrameType
from typing import Final

from temporalio.client import Client, HttpConnectProxyConfig, Interceptor
from temporalio.converter import DataConverter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, TLSConfig

from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.activities.adapters.signing.client import SigningClient
from loom.activities.adapters.signing.key_file import KeyFile
from loom.activities.adapters.temporal.errors import is_refusal, no_server
from loom.composition.client_settings import ClientSettings
from loom.composition.encryption import Encryption, encryption_from
from loom.composition.load_client_settings import finds_stacks
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.extras import WORKER, install
from loom.workflows.payload_converter import data_converter

_log = logging.getLogger("loom.worker")

RECONNECT: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to reach a server. The last number is repeated."""
LEAVE: Final = 0.01
"""Seconds that a program which is ending gives the SDK's threads to notice the calls that it has cancelled."""
LONGEST_LEAVE: Final = 5.0
"""Seconds after which a program ends, even if a thread of the SDK is still in the interpreter."""
_WAKES: Final = asyncio.BaseEventLoop.call_soon_threadsafe.__code__


async def connect(
    settings: ClientSettings,
    *,
    converter: DataConverter = DataConverter.default,
    interceptors: Sequence[Interceptor] = (),
    runtime: Runtime | None = None,
) -> Client:
    """Return a client that is connected to the configured server, and signs requests if it finds the key.

    Raises RuntimeError or RPCError if the server doesn't respond, and UnreachableError if none is configured.
    """
    if "temporal_address" not in settings.model_fields_set:
        # A server that happens to listen at Temporal's usual address may belong to somebody else.
        if not finds_stacks():
            raise UnreachableError(
                "no Temporal server is configured: set TEMPORAL_ADDRESS to the address of a server. To find the stack"
                f" of `loom up`, {install(WORKER)}"
            )
        raise UnreachableError(
            f"no Temporal server is configured, and {settings.home} has no stack: run `loom up`, or set LOOM_HOME to"
            " the .loom folder of a stack, or TEMPORAL_ADDRESS to the address of a server"
        )
    _leave_before_exit()
    key, address = settings.temporal_api_key, settings.temporal_address
    # Behind a Unix socket, the SDK needs any address with a port. The socket leads to one server only.
    is_socket = address.startswith("unix:")
    return await Client.connect(
        "localhost:7233" if is_socket else address,
        http_connect_proxy_config=HttpConnectProxyConfig(target_host=address) if is_socket else None,
        namespace=settings.temporal_namespace,
        api_key=key.get_secret_value() if key else None,
        tls=_tls(settings),
        data_converter=converter,
        runtime=_never_dropped(runtime or (_without_proxy_warning() if is_socket else Runtime.default())),
        interceptors=[SigningClient(KeyFile(settings.key_path).read, converter.payload_converter), *interceptors],
    )


def _tls(settings: ClientSettings) -> TLSConfig | bool:
    """Return the TLS options with the contents of the files. They are read once, so a new certificate takes a restart.

    Raises BadRequest if a file can't be read.
    """
    if not settings.uses_tls:
        return False
    return TLSConfig(
        server_root_ca_cert=_content(settings.temporal_tls_server_ca_cert_path),
        domain=settings.temporal_tls_server_name,
        client_cert=_content(settings.temporal_tls_client_cert_path),
        client_private_key=_content(settings.temporal_tls_client_key_path),
    )


def _content(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError as error:
        raise BadRequest(f"{path} can't be read: {error.strerror}", field="TEMPORAL_TLS") from None


@cache
def _without_proxy_warning() -> Runtime:
    """Return a runtime that doesn't warn that a connection through a proxy resolves no names."""
    usual = LoggingConfig.default.filter
    filters = usual if isinstance(usual, str) else usual.formatted()
    return Runtime(
        telemetry=TelemetryConfig(logging=LoggingConfig(filter=f"{filters},temporal_sdk_bridge::client=ERROR"))
    )


@cache
def _never_dropped(runtime: Runtime) -> Runtime:
    """Keep the SDK's runtime until the process is gone.

    A call that a program leaves unfinished may come back while the interpreter ends, and its thread then hangs. If the
    interpreter drops the runtime, it waits for this thread for ever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(runtime))
    return runtime


@cache
def _leave_before_exit() -> None:
    """Let the interpreter end only when the SDK's threads have left it.

    A thread that hands over an answer wakes the event loop before it leaves. If the program ends in this moment, Python
    before 3.14 ends the thread inside the SDK's native code, which aborts the process.
    """
    atexit.register(_wait_until_left)


def _wait_until_left() -> None:
    end = time.monotonic() + LONGEST_LEAVE
    time.sleep(LEAVE)
    while _is_answer_handed_over() and time.monotonic() < end:
        time.sleep(LEAVE)


def _is_answer_handed_over() -> bool:
    """Whether a thread without a Python program of its own is waking an event loop."""
    frames = sys._current_frames().values()  # noqa: SLF001 - a documented function of CPython
    return any(_outermost(frame).f_code is _WAKES for frame in frames)


def _outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


@asynccontextmanager
async def connected(
    settings: ClientSettings,
    runtime: Runtime | None = None,
    *,
    encryption: Encryption | None = None,
    wait_for_server: bool = False,
) -> AsyncIterator[Client]:
    """Yield a connected client with Loom's payload converter, which can read externally stored and encrypted payloads.

    The payload store is closed when the `with` block ends. Without `encryption`, the client has keys of its own, from
    the settings. Raises UnreachableError if no server responds, unless the caller waits for it, and if the server
    refuses this client.
    """
    storage = PostgresPayloads(settings.database_url) if settings.database_url else None
    own = encryption or encryption_from(settings)
    converter = data_converter(storage, own.codec, encrypts=own.cipher.is_on)
    connecting = partial(connect, settings, converter=converter, interceptors=own.interceptors, runtime=runtime)
    try:
        yield await _connection(connecting, settings.temporal_address, wait_for_server=wait_for_server)
    finally:
        if storage is not None:
            await storage.aclose()
        if encryption is None:
            await own.aclose()


async def _connection(connecting: Callable[[], Awaitable[Client]], address: str, *, wait_for_server: bool) -> Client:
    for pause in chain(RECONNECT, repeat(RECONNECT[-1])):
        try:
            return await connecting()
        except (RuntimeError, RPCError) as error:
            unreachable = no_server(address, error)
            if not wait_for_server or is_refusal(error):
                raise unreachable from error
            _log.warning("waiting_for_temporal", extra={"reason": unreachable.message, "next_try_in": pause})
        await asyncio.sleep(pause)
    raise AssertionError  # `repeat` never ends
