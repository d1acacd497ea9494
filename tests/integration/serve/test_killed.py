"""`loom serve` as a process that is killed while somebody watches."""

import asyncio
from pathlib import Path

import httpx2
import pytest

from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Working, working
from tests.integration.serve.processes import serve_process
from tests.integration.serve.served import Event, events_in

__all__ = ["working"]

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))


@pytest.mark.slow
async def test_a_watcher_resumes_after_the_service_was_killed(working: Working, tmp_path: Path) -> None:
    loom, _ = await working(script([WRITE, text("done " * 200, chunks=50)]))
    run_id = await loom.start(permissions={"write_file": "ask"})
    ask = (await loom.asked(run_id))["pending_approvals"][0]
    seen: list[Event] = []

    async def watch(url: str) -> None:
        headers = {"Last-Event-ID": str(seen[-1].id)} if seen else {}
        async with (
            httpx2.AsyncClient(base_url=url, timeout=30) as http,
            http.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as answer,
        ):
            async for event in events_in(answer):
                seen.append(event)  # noqa: PERF401 - as they come

    async def has_asked() -> bool:
        return any(event.data.get("action") == "node.approval_requested" for event in seen)

    with serve_process(loom.settings, tmp_path) as first:
        watching = asyncio.create_task(watch(await first.url()))
        await eventually(has_asked)
        first.kill()
        with pytest.raises(httpx2.HTTPError):
            await watching
    with serve_process(loom.settings, tmp_path) as second:
        url = await second.url()
        watching = asyncio.create_task(watch(url))
        async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
            answer = await http.post(f"/v1/runs/{run_id}/approve", json={"call_id": ask["call_id"]})
            assert answer.status_code == 200, answer.text
        await watching
    assert seen[-1].type == "end"
    assert [int(str(event.id)) for event in seen[:-1]] == list(range(1, len(seen)))
    assert seen[-2].data["action"] == "node.complete"
