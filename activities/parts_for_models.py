"""Load stored parts for a model call, and replace what the model can't take with text.

A provider rejects a conversation with one part that it can't take, and would reject it again in every attempt.
"""

from base64 import b64encode
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final

from loom.activities.knowledge.ports import DocumentReader, UnreadableDocument, UnreadableNow
from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta, PartStore, StoreUnavailable
from loom.domain.core.errors import LLMUnavailableError
from loom.domain.core.media import IMAGES, MOST_BYTES, base64_content, kind_of, picture_problem, sniffed, too_many_pages
from loom.domain.core.messages import Message, Part

CACHED_BYTES: Final = 64_000_000
"""Maximum size of the stored parts that a worker keeps in memory."""
MOST_TEXT: Final = 200_000
"""Maximum number of characters of a document that a model gets as text."""


class PartLoader:
    """Loads stored parts. A worker keeps those that it used last in memory."""

    def __init__(self, store: PartStore | None, documents: DocumentReader) -> None:
        self._store = store
        self._documents = documents
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._texts: OrderedDict[str, str] = OrderedDict()

    async def shown(self, messages: Sequence[Message], accepts: Collection[str]) -> tuple[Message, ...]:
        """Return the messages as a model that accepts these kinds gets them. Raises LLMUnavailableError if the store is
        unavailable.
        """
        room = MOST_BYTES
        shown: list[Message] = []
        for message in reversed(messages):
            if not isinstance(message.content, str):
                # The newest parts are the ones that the model needs.
                parts = [part for part in message.content if part.type != "text"]
                room -= sum(part.bytes for part in parts)
                message = await self._shown(message, accepts if room >= 0 else ())  # noqa: PLW2901
            shown.append(message)
        return tuple(reversed(shown))

    async def _shown(self, message: Message, accepts: Collection[str]) -> Message:
        parts: list[Part] = []
        for part in message.content:
            if isinstance(part, str) or part.type == "text":
                parts.append(part if isinstance(part, Part) else Part(type="text", text=part))
                continue
            if message.role == "user" and part.digest:
                parts.append(Part(type="text", text=_label(part)))
            parts.append(await self._part(part, accepts))
        return replace(message, content=tuple(parts))

    async def _part(self, part: Part, accepts: Collection[str]) -> Part:
        kind = kind_of(part.media_type)
        is_taken = kind in accepts and not (kind == "pdf" and too_many_pages(part.counted))
        if not (is_taken or kind in ("pdf", "text")):
            return part if part.url else _words(f"{part.told} This model can't take it.")
        if not (part.digest or part.data):
            return part if part.url else _words(f"{part.told} It is empty.")
        data = await self._loaded(part.digest) if part.digest else base64_content(part.data)
        if data is None:
            return _words(f"{part.told} {'It is no longer stored.' if part.digest else 'Its `data` is not base64.'}")
        if not data:
            return part
        if (found := sniffed(data)) in IMAGES and kind == "image":
            part = replace(part, media_type=found)  # an earlier release may have kept another one
        if why := picture_problem(part.media_type, data):
            return _words(f"{part.told} It was left out, because it {why}.")
        if kind == "pdf" and not is_taken:
            return _words(await self._text_of(part, data))
        return replace(part, data=b64encode(data).decode(), digest="", size=0)

    async def _loaded(self, digest: str) -> bytes | None:
        if digest in self._cache:
            self._cache.move_to_end(digest)
            return self._cache[digest]
        if self._store is None:
            return None
        try:
            data = await self._store.load(digest)
        except StoreUnavailable as error:
            raise LLMUnavailableError(f"the images and files of the conversation can't be loaded: {error}") from None
        if data is not None:
            self._cache[digest] = data
            while sum(map(len, self._cache.values())) > CACHED_BYTES:
                self._cache.popitem(last=False)
        return data

    async def _text_of(self, part: Part, data: bytes) -> str:
        """Return the text of a PDF, for a model that can't take the document itself."""
        key = part.digest or sha256(data).hexdigest()
        if key not in self._texts:
            try:
                text = (await self._documents.pdf(data)).replace("\f", "\n\n")[:MOST_TEXT]
                self._texts[key] = f"{part.told} Its text:\n{text}"
            except UnreadableNow as error:
                return f"{part.told} It {error}."
            except UnreadableDocument as error:
                self._texts[key] = f"{part.told} It {error}."
            if len(self._texts) > 50:
                self._texts.popitem(last=False)
        return self._texts[key]


def _label(part: Part) -> str:
    return f"({part.type} {part.name or part.media_type}, id {part.id}; a sub-agent gets it if its prompt names the id)"


def _words(text: str) -> Part:
    return Part(type="text", text=text)


class ProviderWithParts:
    """An `LLMProvider` that loads stored parts before each call."""

    def __init__(self, provider: LLMProvider, loader: PartLoader, accepts: Collection[str]) -> None:
        self.provider = provider
        self._loader = loader
        self._accepts = accepts

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """See the port."""
        if not call.is_text and any(not isinstance(message.content, str) for message in call.messages):
            accepts = call.options.accepts or self._accepts
            call = replace(call, messages=await self._loader.shown(call.messages, accepts))
        return await self.provider.answer(call, on_delta)
