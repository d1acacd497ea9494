"""Many watchers of one run: each gets everything once, and one that reads nothing delays nobody."""

import asyncio
import socket
from datetime import UTC, datetime
from typing import Any

import pytest

from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import RedisStream
from loom.domain.core.tasks import Action, Task
from loom.serve import run_streams
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))


def message(run_id: str, number: int, size: int = 10) -> Task:
    return Task(
        task_id=f"{run_id}/test-{number}",
        run_id=run_id,
        root_run_id=run_id,
        session_id=run_id,
        action=Action.MESSAGE,
        created_at=datetime.now(UTC),
        parameters={"number": number, "content": "x" * size},
    )


async def offsets(api: Served, run_id: str, **how: Any) -> list[int]:
    """The offsets of a run's events, until the run ends."""
    return [int(event.id) for event in await api.events(run_id, **how) if event.id]


async def test_a_hundred_watchers_get_everything_once_wherever_they_begin(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_streams, "KEPT_FRAMES", 20)  # so that most have to read what they missed
    api = await serving(script([WRITE, text("done")]))
    run_id = await api.start(permissions={"write_file": "ask"})
    ask = await api.asked(run_id)
    stream = RedisStream(RedisConnection(str(api.loom.settings.redis_url)))
    await stream.publish([message(run_id, n) for n in range(100)])
    last = await api.loom.client.latest_offset(run_id)
    watching = [asyncio.create_task(offsets(api, run_id, params={"from": n})) for n in range(0, last + 10, 10)]
    watching += [
        asyncio.create_task(offsets(api, run_id, headers={"Last-Event-ID": str(last - 3)})) for _ in range(100)
    ]

    async def connected() -> bool:
        for early in (each for each in watching if each.done()):
            raise AssertionError(f"it ended before the run, with {await early}")
        return f"loom_serve_watchers {len(watching)}" in (await api.http.get("/metrics")).text

    await eventually(connected)
    await stream.publish([message(run_id, n) for n in range(100, 150)])
    await stream.aclose()
    await api.http.post(f"/v1/runs/{run_id}/approve", json={"call_id": ask["call_id"]})
    await api.result(run_id)
    seen = await asyncio.gather(*watching)
    end = await api.loom.client.latest_offset(run_id)
    assert seen[0] == list(range(1, end + 1))
    for begun, got in zip(range(0, last + 10, 10), seen, strict=False):
        assert got == list(range(begun + 1, end + 1)), begun
    assert all(got == list(range(last - 2, end + 1)) for got in seen[-100:])


@pytest.mark.slow
async def test_a_watcher_that_reads_nothing_is_dropped_and_delays_nobody(serving: Serving) -> None:
    api = await serving(script([WRITE, text("done")]), stalled_after=4.0)
    run_id = await api.start(permissions={"write_file": "ask"})
    ask = await api.asked(run_id)
    idle = socket.socket()
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    idle.connect(("127.0.0.1", int(api.url.rpartition(":")[2])))
    token = api.http.headers["authorization"]
    idle.sendall(f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\n\r\n".encode())
    watching = asyncio.create_task(offsets(api, run_id))

    async def watchers(number: int) -> bool:
        return f"loom_serve_watchers {number}\n" in (await api.http.get("/metrics")).text

    await eventually(lambda: watchers(2))
    stream = RedisStream(RedisConnection(str(api.loom.settings.redis_url)))
    for n in range(10):  # 2 MB, more than the service and the sockets buffer
        await stream.publish([message(run_id, n, size=200_000)])
    await stream.aclose()
    await eventually(lambda: watchers(1))
    idle.close()
    await api.http.post(f"/v1/runs/{run_id}/approve", json={"call_id": ask["call_id"]})
    await api.result(run_id)
    end = await api.loom.client.latest_offset(run_id)
    assert await watching == list(range(1, end + 1))


async def test_a_run_that_nobody_has_started_cannot_be_watched(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    answer = await api.http.get("/v1/runs/never/events")
    assert (answer.status_code, answer.json()["title"]) == (404, "RunNotFoundError")
    assert answer.headers["content-type"] == "application/problem+json"
