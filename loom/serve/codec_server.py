"""The codec server, with which Temporal's Web UI and `temporal` command show encrypted payloads.

    POST /encode, POST /decode     {"payloads": [{"metadata": {NAME: BASE64}, "data": BASE64}]} → the same

It is an ASGI application of its own, because its callers and its CORS differ from those of Loom's API. Mount it under
any path: `app.mount("/codec", CodecServer(codec, origins=[…], may_use=…))`. `may_use` decides who gets plain text, and
who gets texts that the stack's keys have encrypted.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from loom.activities.ports import StoreUnavailable
from loom.domain.core.errors import EncryptionKeyError

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Work: TypeAlias = Callable[[Sequence[Payload]], Awaitable[list[Payload]]]
WorkName: TypeAlias = Literal["encode", "decode"]

NO_CONTENT: Final = 204
LARGEST_BODY: Final = 32 * 1024 * 1024
"""Maximum number of bytes of a request."""


class CodecServer:
    """An ASGI application that encodes and decodes payloads for those who may use it."""

    def __init__(
        self,
        codec: PayloadCodec,
        *,
        origins: Collection[str],
        may_use: Callable[[WorkName, Scope], Awaitable[bool]],
    ) -> None:
        """`origins` are the addresses of Web UIs, such as `http://127.0.0.1:8233`. `may_use` gets what a request asks
        for, and its ASGI scope.
        """
        self._codec = codec
        self._origins = frozenset(origins)
        self._may_use = may_use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status, body = await self._answer(scope, receive)
        headers = [(b"content-type", b"application/json"), *self._cors(scope)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if status == NO_CONTENT else json.dumps(body).encode()})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        works: Mapping[WorkName, Work] = {"encode": self._codec.encode, "decode": self._codec.decode}
        name = next((name for name in works if scope["path"].endswith(f"/{name}")), None)
        if name is None:
            return 404, _problem("there are only /encode and /decode")
        match scope["method"]:
            case "OPTIONS":
                return NO_CONTENT, None
            case "POST" if await self._may_use(name, scope):
                return await _coded(works[name], await _body(receive))
            case "POST":
                return 403, _problem(f"you may not {name} payloads")
            case _:
                return 405, _problem("use POST")

    def _cors(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Return the headers that let a browser at a known address read the answer."""
        origin = dict(scope["headers"]).get(b"origin", b"")
        if origin.decode("latin-1") not in self._origins:
            return [(b"vary", b"Origin")]
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            (b"access-control-allow-methods", b"POST, OPTIONS"),
            (b"access-control-allow-headers", b"content-type, authorization, authorization-extras, x-namespace"),
        ]


async def _coded(work: Work, body: bytes | None) -> tuple[int, Any]:
    if body is None:
        return 413, _problem(f"the request has more than {LARGEST_BODY:,} bytes")
    try:
        given = ParseDict(json.loads(body), Payloads())
    except (TypeError, ValueError, ParseError, RecursionError) as error:
        return 400, _problem(f'the body must be {{"payloads": [...]}}: {error}')
    try:
        return 200, MessageToDict(Payloads(payloads=await work(given.payloads)))
    except EncryptionKeyError as error:
        return 422, _problem(error.message)
    except StoreUnavailable as error:
        return 503, _problem(str(error))


async def _body(receive: Receive) -> bytes | None:
    """Return the request's body, or None if it is too large."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > LARGEST_BODY:
            return None
    return bytes(body)


def _problem(detail: str) -> Mapping[str, str]:
    return {"message": detail}
