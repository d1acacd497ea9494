"""A receiver of notifications: real HTTP on a port of its own, and signatures checked by an independent library."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from standardwebhooks import Webhook

SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass(frozen=True, kw_only=True)
class Message:
    """One accepted message."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def event(self) -> str:
        return str(self.body["type"]).removeprefix("run.")

    @property
    def run_id(self) -> str:
        return str(self.body["data"]["run_id"])


@dataclass
class WebhookReceiver:
    """What has arrived. `answers` are the statuses of the next requests; after them, each is accepted."""

    port: int = 0
    answers: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """The `webhook-id` of each request that was answered with an error."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def about(self, run_id: str, path: str = "/hook") -> list[Message]:
        """The messages about one run, in the order in which they came."""
        return [each for each in self.messages if each.run_id == run_id and each.path == path]

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """Answer one request. Raises WebhookVerificationError if the signature is wrong."""
        Webhook(SECRET).verify(body.decode(), dict(headers))
        if self.answers and (status := self.answers.pop(0)) >= 300:
            self.refused.append(headers["webhook-id"])
            return status
        self.messages.append(Message(path=path, headers=headers, body=json.loads(body)))
        return 204

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen, on the same port as before if there was one."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            status = self.take(first.split(" ")[1], headers, body)
            writer.write(f"HTTP/1.1 {status} Whatever\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the worker has been killed
        finally:
            writer.close()
