"""The connection to OpenAI or to a compatible server, and the translation of the SDK's errors."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from loom.activities.adapters.models.error_responses import Server, error_of, error_response_of, unreachable, unreadable
from loom.activities.adapters.models.event_stream import NotAReply
from loom.activities.adapters.models.wire import cause_of, shown
from loom.activities.ports import ModelCall
from loom.domain.core.errors import LoomError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream
    from openai._types import RequestOptions

OFFICIAL_URL: Final = "https://api.openai.com/v1"

_OFFICIAL_HOST: Final = "api.openai.com"


class OpenAIConnection:
    """A reused connection to one account or server."""

    def __init__(self, api_key: str, base_url: str | None, timeouts: tuple[float, float]) -> None:
        """`timeouts` are the limits for connecting and for the time between two chunks, in seconds."""
        self._url = (base_url or OFFICIAL_URL).rstrip("/")
        host = urlsplit(self._url).hostname or ""
        self.is_official = host == _OFFICIAL_HOST or host.endswith(f".{_OFFICIAL_HOST}")  # such as eu.api.openai.com
        self.server = Server(
            name="OpenAI" if self.is_official else "the OpenAI-compatible server",
            key_name="OPENAI_API_KEY",
            url_name="OPENAI_BASE_URL",
            url=shown(self._url),
            secret=api_key,
        )
        self._timeouts = timeouts
        self._client: AsyncOpenAI | None = None

    @asynccontextmanager
    async def calling(self, model: str) -> AsyncIterator["AsyncOpenAI"]:
        """Yield the SDK's client, and translate the errors of a request and its reply, among them NotAReply."""
        client = await self._connected()
        import httpx2  # noqa: PLC0415
        import openai  # noqa: PLC0415  # importing the SDK takes a second

        try:
            yield client
        # The SDK doesn't wrap connection errors after a stream has been opened.
        except (openai.OpenAIError, httpx2.RequestError, NotAReply) as error:
            raise self._translated(error, model) from None

    async def post(
        self, client: "AsyncOpenAI", path: str, body: Mapping[str, Any], call: ModelCall
    ) -> "AsyncStream[object]":
        """Send a request with the agent's headers and its own timeout, if it has one, and return the reply's stream."""
        from openai import AsyncStream, Timeout  # noqa: PLC0415

        connect, _ = self._timeouts
        of_agent: RequestOptions = {} if call.timeout is None else {"timeout": Timeout(call.timeout, connect=connect)}
        # Avoid methods such as `chat.completions.create`, which would traverse the whole conversation and build a
        # pydantic model for each chunk.
        return await client.post(
            path,
            body=body,
            cast_to=object,
            options={"security": {"bearer_auth": True}, "headers": call.options.extra_headers, **of_agent},
            stream=True,
            stream_cls=AsyncStream[object],
        )

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> "AsyncOpenAI":
        """Return the SDK's client."""
        if self._client is None:
            # Import the SDK in a thread, so that other activities can continue to heartbeat.
            await asyncio.to_thread(importlib.import_module, "openai")
        if self._client is None:
            from openai import AsyncOpenAI, Timeout  # noqa: PLC0415

            connect, read = self._timeouts
            timeout = Timeout(read, connect=connect)
            self._client = AsyncOpenAI(api_key=self.server.secret, base_url=self._url, timeout=timeout, max_retries=0)
        return self._client

    def _translated(self, error: Exception, model: str) -> LoomError:
        """Translate an SDK error into a Loom error. Only this method translates SDK errors."""
        import httpx2  # noqa: PLC0415
        import openai  # noqa: PLC0415

        match error:
            case openai.APIStatusError():
                error_response = error_response_of(error.body, error.status_code, error.response.headers, error.message)
                return error_of(error_response, self.server, model)
            case openai.APITimeoutError() | httpx2.TimeoutException():
                return unreachable(self.server, model, "no data within the time limit")
            case openai.APIConnectionError() | httpx2.RequestError():
                return unreachable(self.server, model, f"no connection, or it was lost ({cause_of(error)})")
            case openai.APIResponseValidationError():
                return unreadable(self.server, model, "unexpected shape")
            case openai.OpenAIError():
                return unreachable(self.server, model, type(error).__name__)
            case _:
                return unreadable(self.server, model, str(error))
