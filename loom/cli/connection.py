"""Connect commands to the server. Each command uses one connection and one event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final, TypeVar
from urllib.parse import quote

from loom.activities.ports import StreamUnavailable
from loom.cli.logs import IS_VERBOSE, silence
from loom.cli.output import print_notice
from loom.client import LoomClient
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.domain.core.errors import RunNotFoundError, UnreachableError
from loom.stack.state import own_addresses, read

T = TypeVar("T")

SILENT: Final = 2.0
"""Seconds after which a command says what it waits for."""


def with_client(work: Callable[[LoomClient], Awaitable[T]], settings: Settings | None = None) -> T:
    """Call `work` with a connected client. Raises UnreachableError if the server or the stream doesn't respond.

    `loom --verbose` prints which server it is. If the server doesn't know a run or doesn't respond, a note on the error
    says so.
    """
    chosen = settings or load_settings()
    silence()
    if IS_VERBOSE.get():
        print_notice(f"server: {server_named(chosen)}")

    async def connected() -> T:
        async with AsyncExitStack() as stack:
            with notice_if_slow(f"waiting for the server to answer: {server_named(chosen)}"):
                loom = await stack.enter_async_context(LoomClient.connected(chosen))
            return await work(loom)

    try:
        return asyncio.run(connected())
    except StreamUnavailable as error:
        raise UnreachableError(f"the live stream is unavailable: {error}") from error
    except (RunNotFoundError, UnreachableError) as error:
        is_named = chosen.temporal_address in error.message or "temporal_address" not in chosen.model_fields_set
        if not is_named and not IS_VERBOSE.get():
            error.add_note(f"server: {server_named(chosen)}")
        raise


@contextmanager
def notice_if_slow(text: str) -> Iterator[None]:
    """Print the notice if the block takes longer than two seconds, so that no command waits in silence."""
    told = asyncio.get_running_loop().call_later(SILENT, print_notice, text)
    try:
        yield
    finally:
        told.cancel()


def server_named(settings: Settings) -> str:
    """Return the server's address and where the address comes from, for people."""
    if "temporal_address" not in settings.model_fields_set:
        return f"none is configured, and {settings.home} has no stack"
    address, namespace = settings.temporal_address, settings.temporal_namespace
    is_own = own_addresses(settings.home).get("temporal") == address
    origin = f"the stack in {settings.home}" if is_own else "TEMPORAL_ADDRESS"
    return f"{address}{'' if namespace == 'default' else f', namespace {namespace}'} ({origin})"


def web_ui(run_id: str) -> str | None:
    """Return the address of a run in the Web UI of the embedded stack, if commands talk to that stack."""
    settings = load_settings()
    ui = read(settings.home).ui
    if ui is None or own_addresses(settings.home).get("temporal") != settings.temporal_address:
        return None
    return f"{ui}/namespaces/{settings.temporal_namespace}/workflows/{quote(run_id, safe='')}"
