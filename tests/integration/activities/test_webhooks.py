"""What each answer of a receiver means, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from loom.activities.adapters.notifications import webhook
from loom.activities.adapters.notifications.webhook import Webhook
from loom.domain.core.errors import NotDeliveredError

NO_BODY: Final = "content-length: 0\r\n"
ENDLESS: Final = "transfer-encoding: chunked\r\n"


@asynccontextmanager
async def answering(status: str, headers: str = NO_BODY) -> AsyncIterator[tuple[str, list[str]]]:
    """A server with one answer. Yields its URL, and the first line of each request."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            seen.append((await reader.readline()).decode().strip())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status}\r\n{headers.format(port=port)}\r\n".encode() if status else b"")
            while headers == ENDLESS or not status:
                writer.write(b"1\r\nx\r\n" if status else b"")
                await writer.drain()
                await asyncio.sleep(0.01)
                if reader.at_eof():
                    break
        except ConnectionError:
            pass  # the other side has read enough
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://user:geheim@127.0.0.1:{port}/hook", seen


@pytest.mark.parametrize(
    ("status", "headers", "final", "after"),
    [
        ("301 Moved", NO_BODY + "location: http://127.0.0.1:{port}/elsewhere\r\n", None, None),
        ("307 Moved", NO_BODY + "location: http://127.0.0.1:{port}/elsewhere\r\n", None, None),
        ("400 Bad Request", NO_BODY, None, None),
        ("410 Gone", NO_BODY, True, None),
        ("429 Slow Down", NO_BODY + "retry-after: 20\r\n", None, 20),
        ("503 Away", NO_BODY + "retry-after: 0\r\n", None, 1),
        ("503 Away", NO_BODY + "retry-after: 999999\r\n", None, 3600),
        ("503 Away", NO_BODY + "retry-after: Wed, 21 Oct 2026 07:28:00 GMT\r\n", None, None),
    ],
)
async def test_every_other_answer_is_an_error_that_says_when_to_try_again(
    status: str, headers: str, final: bool | None, after: float | None
) -> None:
    async with answering(status, headers) as (url, seen):
        with pytest.raises(NotDeliveredError) as caught:
            await Webhook(url, None).send("msg_1", b"{}")
    assert seen == ["POST /hook HTTP/1.1"]  # no redirect is followed
    assert caught.value.message == f"the receiver answered {status.split(maxsplit=1)[0]}"
    assert (caught.value.is_final, caught.value.context.get("retry_after")) == (bool(final), after)


async def test_an_answer_without_an_end_is_an_answer_and_silence_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering("200 OK", ENDLESS) as (url, _):
        await Webhook(url, None).send("msg_1", b"{}")
    async with answering("") as (url, _):
        with monkeypatch.context() as patch:
            patch.setattr(webhook, "TIME_LIMIT", 0.2)
            with pytest.raises(NotDeliveredError, match="didn't answer within") as silent:
                await Webhook(url, None).send("msg_1", b"{}")
    with pytest.raises(NotDeliveredError, match="can't be reached") as away:
        await Webhook(url, None).send("msg_1", b"{}")
    for error in (silent, away):
        assert "geheim" not in str(error.value)
