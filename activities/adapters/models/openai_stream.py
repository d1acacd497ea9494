"""The stream of an OpenAI reply, which tells how the server ended it. Importing this module imports the SDK."""

from collections.abc import AsyncIterator

from openai import AsyncStream
from openai._streaming import ServerSentEvent


class ReplyStream(AsyncStream[object]):
    """A stream of decoded chunks."""

    is_done = False
    """Whether the server has ended the stream with `[DONE]`, and not only closed it."""

    async def _iter_events(self) -> AsyncIterator[ServerSentEvent]:
        async for event in super()._iter_events():
            if event.data.startswith("[DONE]"):
                self.is_done = True
            yield event
