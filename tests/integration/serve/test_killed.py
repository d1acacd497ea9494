"""`loom serve` as a process: killed while somebody watches, and asked everything that its own schema allows."""

import asyncio
import os
import re
import sys
from pathlib import Path

import httpx2
import pytest

from loom.activities.adapters.postgres.access import PostgresTokens
from loom.activities.adapters.postgres.database import Database
from loom.chat_session import ChatSession
from loom.serve.access.roles import Role
from loom.serve.access.tokens import AccessTokens
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


async def fuzzed(working: Working, tmp_path: Path, *how: str) -> None:
    """Send requests made from the API's own schema to a running service, to all of its routes."""
    loom, _ = await working(script([text("done")], repeat_last=True), replay=False)
    run_id = await loom.start()
    await loom.client.result(run_id)
    chat = ChatSession(loom.client, "known", workspace=str(loom.workspace))
    await chat.answer(await chat.send("hello", message_id="m-1"))
    database = Database(str(loom.settings.database_url), max_connections=1)
    tokens = AccessTokens(PostgresTokens(database))
    _, token = await tokens.add("fuzzer", Role.ADMIN, tenant=None, expires_at=None, created_by="a test")
    await database.aclose()
    with serve_process(loom.settings, tmp_path) as service:
        url = await service.url()
        known = tmp_path / "schemathesis.toml"
        known.write_text(
            'warnings.fail-on = ["missing_auth"]\n'  # requests that are refused unread would test nothing
            f'[parameters]\n"path.run_id" = "{chat.run_id}"\n"path.session" = "known"\n"path.message_id" = "m-1"\n'
            '"path.agent" = "default"\n"query.wait" = 1\n'
        )
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("st")), "--config-file", str(known), "run", f"{url}/openapi.json"),
            *("--header", f"Authorization: Bearer {token}", "--checks", "not_a_server_error", "--no-color"),
            *("--request-timeout", "60", "--no-shrink", "--workers", "1", "--generation-database", "none", *how),
            cwd=tmp_path,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, said[-6000:]
        selected, tested = (re.search(rf"{name}: +(\d+)", said) for name in ("Selected", "Tested"))
        assert selected is not None
        assert tested is not None
        assert tested[1] == selected[1] != "0", said[-6000:]
        sys.stdout.write(said)  # shown by `pytest -s`
        assert "request_failed" not in service.log.read_text()


@pytest.mark.slow
async def test_nothing_that_the_schema_allows_makes_the_service_fail(working: Working, tmp_path: Path) -> None:
    await fuzzed(working, tmp_path, "--phases", "fuzzing", "--max-examples", "3")


@pytest.mark.slow
async def test_nothing_that_the_schema_allows_makes_the_service_fail_for_long(working: Working, tmp_path: Path) -> None:
    await fuzzed(working, tmp_path, "--max-examples", "50", "--max-time", "240")
