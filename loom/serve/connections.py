"""Connections that carry no request are closed, so that strangers can't take all that the service may have open."""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_WITHIN: Final = 10.0
"""Seconds that a client has to send the head of a request, from its connection or its last answer on."""


class Connection(H11Protocol):
    """A connection to a client. The base class waits for ever for a head that comes a byte at a time, and for the rest
    of a body that nobody reads anymore.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class
        """See the base class."""
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """See the base class."""
        super().data_received(data)
        if self._is_answering():
            self._expect_nothing()

    def on_response_complete(self) -> None:
        """See the base class."""
        super().on_response_complete()
        if not self._is_answering():  # the next request may have come already
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """See the base class."""
        self._expect_nothing()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_request(self) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(REQUEST_WITHIN, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
