"""Compute vectors with OpenAI's embeddings API or a compatible server, such as Ollama, vLLM, llama.cpp or TEI."""

import asyncio
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loom.activities.adapters.models.wire import shown
from loom.activities.memory.ports import EmbedderUnavailable, TextRefused
from loom.domain.core.errors import LLMConfigurationError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

OFFICIAL_URL: Final = "https://api.openai.com/v1"
KNOWN: Final = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
    "nomic-embed-text": 768,
    "mxbai-embed-large": 1024,
    "bge-m3": 1024,
    "all-minilm": 384,
}
"""Maps each known model to its dimension."""
BATCH: Final = 64
LONGEST: Final = 20_000
"""Maximum number of characters per text. Longer texts are truncated, because servers reject text that is too long for
their model.
"""
_OF_THE_TEXT: Final = (400, 413, 422)
"""Status codes that servers return for a text that is too long or invalid."""
_TIMEOUT: Final = 60.0


class OpenAIEmbedder:
    """An `Embedder` for one account or server. It reuses its connections."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        dimension: int | None = None,
        prefixes: tuple[str, str] = ("", ""),
        timeout: float = _TIMEOUT,
    ) -> None:
        """`prefixes` contains two strings. The first is prepended to each question, and the second to each text. Some
        models, such as E5, require prefixes.

        Raises LLMConfigurationError if the model isn't in KNOWN and the caller passes no `dimension`.
        """
        size = dimension or KNOWN.get(model.partition(":")[0])
        if size is None:
            raise LLMConfigurationError(
                f"the dimension of the embedding model {model!r} is unknown:"
                f" set LOOM_EMBEDDER to openai:{model}@DIMENSION"
            )
        self._model, self._dimension, self._prefixes = model, size, prefixes
        self._key, self._timeout = api_key, timeout
        self._url = (base_url or OFFICIAL_URL).rstrip("/")
        self._client: AsyncOpenAI | None = None

    @property
    def model(self) -> str:
        """See the port."""
        return self._model

    @property
    def dimension(self) -> int:
        """See the port."""
        return self._dimension

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """See the port."""
        prefix = self._prefixes[0 if query else 1]
        # Replace empty texts, because some servers reject them.
        given = [prefix + (_sendable(text) or " ") for text in texts]
        vectors: list[list[float]] = []
        for start in range(0, len(given), BATCH):
            vectors += await self._batch(given[start : start + BATCH])
        return vectors

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _batch(self, texts: list[str]) -> list[list[float]]:
        client = await self._connected()
        import openai  # noqa: PLC0415 - importing the SDK takes a second

        try:
            answer = await client.embeddings.create(model=self._model, input=texts, encoding_format="float")
            found = [entry.embedding for entry in sorted(answer.data, key=lambda entry: entry.index)]
        except openai.APIStatusError as error:
            kind = TextRefused if error.status_code in _OF_THE_TEXT else EmbedderUnavailable
            raise kind(self._told(f"status {error.status_code}")) from None
        except openai.OpenAIError as error:
            raise self._unavailable(type(error).__name__) from None
        except (AttributeError, TypeError, ValueError):
            raise self._unavailable("its response is not a list of vectors") from None
        return self._checked(found, len(texts))

    def _checked(self, found: list[list[float]], wanted: int) -> list[list[float]]:
        if len(found) != wanted:
            raise self._unavailable(f"{len(found)} vectors for {wanted} texts")
        if wrong := next((len(vector) for vector in found if len(vector) != self._dimension), None):
            raise self._unavailable(f"its vectors have {wrong} dimensions, but {self._dimension} are configured")
        return found

    async def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            # Import the SDK in a thread, so that other activities can continue to heartbeat.
            await asyncio.to_thread(importlib.import_module, "openai")
        if self._client is None:
            from openai import AsyncOpenAI  # noqa: PLC0415

            self._client = AsyncOpenAI(api_key=self._key, base_url=self._url, timeout=self._timeout, max_retries=0)
        return self._client

    def _unavailable(self, why: str) -> EmbedderUnavailable:
        return EmbedderUnavailable(self._told(why))

    def _told(self, why: str) -> str:
        # Omit the server's message, because it may contain the input and the API key.
        return f"{shown(self._url)} returned no vectors for the model {self._model} ({why})"


def _sendable(text: str) -> str:
    return text[:LONGEST].replace("\0", " ").encode("utf-8", "replace").decode()
