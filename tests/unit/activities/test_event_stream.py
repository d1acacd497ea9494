"""Server-sent events from any pieces of bytes, read as WHATWG's HTML standard says."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.models.event_stream import DONE, Event, NotAReply, events_of


async def read(pieces: Sequence[bytes]) -> list[Event]:
    """The events of a body that arrives in these pieces."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    headers = {"content-type": "text/event-stream; charset=iso-8859-1"}
    response = httpx2.Response(200, headers=headers, content=body(), request=httpx2.Request("POST", "http://host"))
    return [event async for event in events_of(response, lambda: False)]


def events(*values: object) -> list[Event]:
    """Events without a name."""
    return [Event("message", value) for value in values]


BODIES = [
    (b"data: 1\n\ndata: 2\n\n", events(1, 2)),
    (b"\xef\xbb\xbfdata: 1\n\n", events(1)),
    (b"\xef\xbb\xbf\n\ndata: 1\n\n", events(1)),
    (b"id: 1\ndata: 1\n\n: ping\n\ndata: 2\n\n", events(1, 2)),
    (b"retry: 3000\n\ndata: 1\n\n", events(1)),
    (b"event: keepalive\ndata: \n\ndata\n\ndata: \t \n\ndata: 1\n\n", events(1)),
    (b"event: ping\ndata: any thing\n\ndata: 1\n\n", events(1)),
    (b'data: null\n\ndata: true\n\ndata: ""\n\ndata: 1\n\n', events(1)),
    (b'data: "a\tb\x01c\x1f"\n\n', events("a\tb\x01c\x1f")),
    (b'error: {"a": 1}\n\ndata: 1\n\n', [Event("error", {"a": 1}), Event("message", 1)]),
    (b"\xef\xbb\xbferror: 1\n\ndata: 1\n\n", [Event("error", 1), Event("message", 1)]),
    (b"data: 1\n\nerror: no\n\n", [Event("message", 1), Event("error", "no")]),
    (b"data: 1\r\rerror:no\r\r", [Event("message", 1), Event("error", "no")]),
    (b'data: "error: no"\n\n: error: no\n\ndata: 1', events("error: no", 1)),
    (b"data:1\r\n\r\ndata:2\r\n\r\n", events(1, 2)),
    (b"data:1\r\rdata:2\r\r", events(1, 2)),
    (b"data: [\ndata: 1\ndata: ]\n\n", events([1])),
    (b"event: x\ndata: 1\n\ndata: 2\n\n", [Event("x", 1), Event("message", 2)]),
    ('data: "a\u2028b\x85c"\n\n'.encode(), events("a\u2028b\x85c")),
    ('data: "😀ü"\n\n'.encode(), events("😀ü")),
    (b'data: "a\xff\xf0\x9fb"\n\n', events("a\ufffd\ufffdb")),
    (b": \xff\xfe\n\ndata: 1\n\n", events(1)),
    (b"unknown: 1\nid: 0\0\nretry: x\ndata: 1\n\n", events(1)),
    (b"data: 1\n\ndata: 2", events(1, 2)),
    (b'data: 1\n\ndata: {"a":', events(1)),
    (b"data: 1\n\ndata: [DONE]\n\ndata: {not JSON\n\n", events(1, DONE)),
    (b"event: error\ndata: no\n\n", [Event("error", "no")]),
    (b"", []),
]


@pytest.mark.parametrize(("body", "expected"), BODIES)
async def test_a_body_has_the_same_events_wherever_it_is_cut(body: bytes, expected: list[Event]) -> None:
    for size in (1, 2, 3, 5, 1000):
        assert await read([body[at : at + size] for at in range(0, len(body), size)]) == expected


@pytest.mark.parametrize(
    "body", [b"data: {not JSON\n\n", b"data: " + b"[" * 100_000 + b"\n\n", b"data: x\n\ndata: 1", b"data: x\r\rdata: 1"]
)
async def test_data_that_is_no_json_is_no_reply(body: bytes) -> None:
    with pytest.raises(NotAReply):
        await read([body])


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"data: ", b"1", b"\n", b"\r", b"\n\n", b"\xef\xbb\xbf"])))
def test_any_bytes_are_events_or_no_reply(pieces: list[bytes]) -> None:
    with suppress(NotAReply):
        asyncio.run(read(pieces))
