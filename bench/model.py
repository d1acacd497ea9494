"""The model server of the benchmarks. It is fast, streams its replies, and serves every loop that is measured.

The task selects the behavior. With `turns=N`, the model reads `data.txt` once per turn and then answers. With
`bash=COMMAND`, it calls `bash` once and then answers. With `stamps=N`, it streams N pieces at intervals of 20 ms. Each
piece is the time when it was sent. With `hang`, it streams some text and then nothing more.
`paced=N` is the same as `turns=N`, except that each reply takes a second.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from typing import Any


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection with any number of requests."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            async for delta, finish in _deltas(body["messages"]):
                _event(writer, delta, finish)
                await writer.drain()
            _raw(writer, {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}})
            _chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _deltas(messages: list[dict[str, Any]]) -> AsyncIterator[tuple[dict[str, Any], str | None]]:
    task = next(m["content"] for m in messages if m["role"] == "user")
    kind, _, number = task.partition("=")
    answered = sum(m["role"] == "assistant" for m in messages)
    if kind == "paced":
        kind = "turns"
        await asyncio.sleep(1)
    if kind == "stamps":
        for _ in range(int(number)):
            await asyncio.sleep(0.02)
            yield {"content": f"{time.time():.6f} "}, None
        yield {}, "stop"
    elif kind == "hang":
        yield {"content": "thinking"}, None
        await asyncio.sleep(3600)
    elif kind == "bash" and answered == 0:
        yield _call(answered, "bash", {"command": number, "timeout": 600}), None
        yield {}, "tool_calls"
    elif kind == "turns" and answered < int(number) - 1:
        yield _call(answered, "read_file", {"path": "data.txt"}), None
        yield {}, "tool_calls"
    else:
        yield {"content": "done"}, None
        yield {}, "stop"


def _call(index: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"index": 0, "id": f"call_{index}", "type": "function", "function": function}]}


def _event(writer: asyncio.StreamWriter, delta: dict[str, Any], finish: str | None) -> None:
    _raw(writer, {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _raw(writer: asyncio.StreamWriter, fields: dict[str, Any]) -> None:
    event = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted", **fields}
    _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def main() -> None:
    """Serve on a free port, and print its address."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
