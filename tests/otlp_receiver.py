"""A receiver of OpenTelemetry's protocol: it decodes what a worker sends with the protocol's official messages.

No collector can be installed from PyPI, npm or Debian.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Receiver:
    """What has arrived."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    refuses: int = 0
    """The number of requests that are answered with an error."""

    def named(self, name: str) -> list[Span]:
        """The spans with this name."""
        return [span for span in self.spans if span.name == name]

    def parent_of(self, span: Span) -> Span | None:
        """The span above, or None."""
        return next((each for each in self.spans if each.span_id == span.parent_span_id), None)

    def take(self, body: bytes) -> None:
        """Decode one request."""
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {each.key: each.value.string_value for each in sent.resource.attributes}
            self.services.add(named["service.name"])
            self.spans.extend(span for scope in sent.scope_spans for span in scope.spans)


def attributes(span: Span) -> dict[str, str | int | float | bool]:
    """The attributes of a span."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver on a port of its own."""
    receiver = Receiver()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                assert first.startswith("POST /v1/traces "), first
                if receiver.refuses:
                    receiver.refuses -= 1
                    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                else:
                    receiver.take(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the worker has closed the connection, or has been killed
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
