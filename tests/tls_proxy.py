"""Servers that speak TLS in front of the session's servers, which don't, and ask each client for its certificate."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

from hpack import Decoder

from tests.certificates import Authority

_SSL_REQUEST = 8  # bytes in which a Postgres client asks for TLS, before anything else
_HEADERS = 1


@asynccontextmanager
async def tls_in_front_of(
    host: str, port: int, authority: Authority, *, is_postgres: bool = False, sent: list[bytearray] | None = None
) -> AsyncIterator[int]:
    """A port of localhost that admits only clients with a certificate of the authority, and forwards to a server.

    What each connection's client sends, decrypted, is added to `sent`.
    """
    context = authority.server("localhost")
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.path)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, seen = asyncio.current_task(), bytearray()
        assert task is not None
        serving.add(task)
        if sent is not None:
            sent.append(seen)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError), closing(writer):
            if is_postgres:
                await reader.readexactly(_SSL_REQUEST)
                writer.write(b"S")
                await writer.start_tls(context)
            there, to_there = await asyncio.open_connection(host, port)
            with closing(to_there):
                await asyncio.gather(_copy(reader, to_there, seen), _copy(there, writer, bytearray()))

    tls = None if is_postgres else context  # a Postgres client first asks for TLS without it
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, seen: bytearray) -> None:
    while chunk := await source.read(65536):
        seen += chunk
        target.write(chunk)
        await target.drain()
    raise ConnectionError  # ends the other direction, too


def headers_in(sent: bytes) -> list[tuple[str, str]]:
    """The headers of all requests that one HTTP/2 client has sent."""
    decoder, at, found = Decoder(), len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []
    while at + 9 <= len(sent):
        length, kind = int.from_bytes(sent[at : at + 3]), sent[at + 3]
        if kind == _HEADERS:
            found += [(str(n), str(v)) for n, v in decoder.decode(bytes(sent[at + 9 : at + 9 + length]))]
        at += 9 + length
    return found
