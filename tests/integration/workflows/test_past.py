"""A run's past, read from its history: exactly what each model call saw, with no worker asked."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from loom.cli.commands.show import context_view
from loom.domain.core.errors import RunNotFoundError
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, status, text
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_compression import SUMMARY, WORDS, is_about_compressing, long_talk

READ = calls(ToolUse("read_file", {"path": "a.txt"}), ToolUse("grep", {"pattern": "alpha"}))


async def test_the_past_tells_of_every_turn_what_was_said_and_done(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("alpha\n")
    loom, _ = await working(script([status(500), READ, text("done")]))
    await loom.run("read it")

    first, second = await loom.client.turns(loom.started[0])

    assert [call.attempt.error != "" for call in first.calls] == [True, False]
    assert sorted(tool.request.tool for tool in first.tools) == ["grep", "read_file"]
    assert all("alpha" in tool.result.content for tool in first.tools if tool.result)
    reply = second.calls[-1].attempt.reply
    assert reply is not None
    assert reply.message is not None
    assert reply.message.text == "done"


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"rotate_after_events": 100}], ids=["one execution", "rotated"])
async def test_what_a_model_call_saw_is_told_exactly(working: Working, workspace: Path, given: dict[str, int]) -> None:
    (workspace / "long.txt").write_text(WORDS)
    loom, server = await working(long_talk(20, text(SUMMARY)), context_window=8_400, compress_at=0.6, **given)
    await loom.run("read it often", max_turns=30)

    turns = await loom.client.turns(loom.started[0])

    asked = [request for request in server.requests if not is_about_compressing(request)]
    assert len(turns) == len(asked) == 21
    for turn, request in zip(turns, asked, strict=True):
        call = turn.calls[-1]
        parts = call.context
        assert parts is not None
        told = [message.text for part in parts for message in part.component.messages if part.tokens]
        assert told == [message["content"] or "" for message in request.messages[1:]]
        texts = [part.component.text for part in parts[1:] if part.component.text]
        assert all(text in request.messages[0]["content"] for text in texts)
        view = context_view(call, parts)
        assert call.attempt.reply is not None
        assert view["tokens"] == call.attempt.reply.estimated
    assert sum(len(turn.compressions) for turn in turns) == len(server.requests) - len(asked) > 0


@pytest.mark.slow
async def test_the_command_shows_turns_and_contexts(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("alpha\n")
    loom, _ = await working(script([READ, text("done")]))
    await loom.run("read it")

    plain = await show(loom, loom.started[0])
    seen = json.loads(await show(loom, loom.started[0], "--turn", "2", "--context", "--json"))
    wrong = await show(loom, loom.started[0], "--turn", "9")

    assert "── turn 1 ──" in plain
    assert "alpha" in plain
    sources = [part["source"] for part in seen["parts"]][-2:]
    assert sources == ["message 1: user", "message 2: assistant, calling read_file, grep and 2 results"]
    assert seen["tokens"] == sum(part["tokens"] for part in seen["parts"])
    assert "the run has no turn 9" in wrong


async def show(loom: Harness, run_id: str, *given: str) -> str:
    """What `loom show` prints, with an error in the place of a result."""
    program = (
        "from loom.cli.commands.show import app; from loom.domain.core.errors import LoomError\n"
        "try: app(standalone_mode=False)\n"
        "except LoomError as error: print(error.message)"
    )
    env = {
        **os.environ,
        "TEMPORAL_ADDRESS": loom.settings.temporal_address,
        "TEMPORAL_NAMESPACE": loom.settings.temporal_namespace,
        "LOOM_DATABASE_URL": str(loom.settings.database_url),
    }
    ran = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, run_id, *given, env=env, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await ran.communicate()
    return out.decode()


async def test_there_is_no_past_of_a_run_that_never_was(working: Working) -> None:
    loom, _ = await working(script([text("never")]))
    with pytest.raises(RunNotFoundError, match="loom list"):
        await loom.client.turns("no-such-run")
