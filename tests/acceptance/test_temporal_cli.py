"""Runs without any of Loom's code on the caller's side: the public contract, through Temporal's own command line."""

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, hang, script, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Working

TEMPORAL: Final = str(Path(sys.executable).parent / "temporal")
WRITE: Final = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


@dataclass(frozen=True)
class Cli:
    """`temporal`, pointed at the tests' server."""

    loom: Harness

    async def __call__(self, *words: str) -> dict[str, Any]:
        """Run a command that has to succeed, and read what it prints."""
        process = await asyncio.create_subprocess_exec(
            *(TEMPORAL, *words, "--address", self.loom.settings.temporal_address),
            *("--namespace", self.loom.settings.temporal_namespace, "--output", "json"),
            *("--color", "never", "--disable-config-file", "--disable-config-env"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        # `workflow result` of a failed run exits with 1 and prints it all the same.
        assert process.returncode == 0 or out, err.decode()
        return dict(json.loads(out)) if out.strip() else {}

    async def start(self, *inputs: str) -> str:
        """Start a run with these `--input`s."""
        run_id = f"cli-{uuid4().hex[:8]}"
        words = [word for given in inputs for word in ("--input", given)]
        queue = self.loom.settings.task_queue
        await self(*("workflow", "start", "--type", "AgentRun", "--task-queue", queue, "--workflow-id", run_id), *words)
        self.loom.started.append(run_id)
        return run_id

    async def signal(self, run_id: str, name: str, payload: str | None = None) -> None:
        """Send a signal."""
        await self(
            *("workflow", "signal", "--workflow-id", run_id, "--name", name), *(("--input", payload) if payload else ())
        )

    async def status(self, run_id: str) -> dict[str, Any]:
        """Ask the query `status`."""
        answer = await self("workflow", "query", "--workflow-id", run_id, "--type", "status")
        return dict(answer["queryResult"][0])

    async def result(self, run_id: str) -> dict[str, Any]:
        """Wait for the end."""
        return await self("workflow", "result", "--workflow-id", run_id)


async def test_a_run_is_started_approved_and_read_with_nothing_but_the_temporal_command(
    working: Working, workspace: Path
) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    cli = Cli(loom)
    run_id = await cli.start(json.dumps({"task": "write it", "workspace": str(workspace)}))
    status = await _waiting(cli, run_id)
    ask = status["pending_approvals"][0]
    assert (ask["call_id"], ask["tool"], ask["arguments"]) == ("w1", "write_file", WRITE.arguments)

    await cli.signal(run_id, "approve", json.dumps({"call_id": "w1", "digest": ask["digest"], "by": "ann"}))
    done = await cli.result(run_id)

    assert done["status"] == "COMPLETED"
    assert (done["result"]["status"], done["result"]["output"]) == ("completed", "written")
    assert (workspace / "out.txt").read_text() == "hello"


async def test_pause_resume_message_deny_and_update_work_from_the_temporal_command(working: Working) -> None:
    loom, model = await working(script([calls(WRITE), text("I see")]))
    cli = Cli(loom)
    run_id = await cli.start('{"task": "write it"}')
    await _waiting(cli, run_id)

    await cli.signal(run_id, "pause")
    assert (await cli.status(run_id))["status"] == "paused"
    await cli.signal(run_id, "send_message", '{"text": "use blue"}')
    receipt = await cli("workflow", "update", "execute", "--workflow-id", run_id, "--name", "deny", "--input", "{}")
    assert receipt["result"]["accepted"]
    await cli.signal(run_id, "resume", "{}")

    assert (await cli.result(run_id))["result"]["output"] == "I see"
    said = [message["content"] for message in model.requests[1].messages[-2:]]
    assert "Denied" in said[0]
    assert said[1] == "use blue"


async def test_an_abort_completes_the_workflow_with_its_status(working: Working) -> None:
    loom, model = await working(lambda _: hang())
    cli = Cli(loom)
    run_id = await cli.start('{"task": "never ends"}')

    async def asked() -> bool | None:
        return bool(model.requests) or None

    await eventually(asked)
    await cli.signal(run_id, "abort")
    done = await cli.result(run_id)

    assert (done["status"], done["result"]["status"]) == ("COMPLETED", "aborted")


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        (['{"task": "x", "max_turn": 3}'], "max_turn"),
        pytest.param(['{"task": "x", "max_turns": "many"}'], "max_turns", marks=pytest.mark.slow),
        pytest.param(['{"model": "openai:scripted"}'], "task", marks=pytest.mark.slow),
        pytest.param(['{"task": "  "}'], "task", marks=pytest.mark.slow),
        pytest.param(['{"task": "x", "agent": "nobody"}'], "nobody", marks=pytest.mark.slow),
        pytest.param(['{"task": "x", "permissions": {"bash": "perhaps"}}'], "bash", marks=pytest.mark.slow),
        pytest.param(['{"task": "x", "workspace": "/no/such/folder"}'], "workspace", marks=pytest.mark.slow),
        ([], "no input"),
        pytest.param(["null"], "no input", marks=pytest.mark.slow),
        (['"just text"'], "JSON object"),
        pytest.param(["[1, 2]"], "JSON object", marks=pytest.mark.slow),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
async def test_a_request_that_cannot_be_meant_fails_at_once_and_says_why(
    working: Working, inputs: list[str], named: str
) -> None:
    loom, model = await working(script([]))
    cli = Cli(loom)

    done = await cli.result(await cli.start(*inputs))

    assert done["status"] == "FAILED"
    failure = done["closeEvent"]["workflowExecutionFailedEventAttributes"]["failure"]
    assert failure["applicationFailureInfo"]["type"] == "BadRequest"
    assert failure["applicationFailureInfo"]["nonRetryable"]
    assert named in failure["message"]
    assert model.requests == []


async def test_a_second_input_is_not_mistaken_for_anything(working: Working) -> None:
    loom, model = await working(script([text("Four.")]))
    cli = Cli(loom)

    done = await cli.result(await cli.start('{"task": "What is two and two?"}', '{"task": "something else"}'))

    assert (done["status"], done["result"]["output"]) == ("COMPLETED", "Four.")
    assert model.requests[0].messages[-1]["content"] == "What is two and two?"


async def _waiting(cli: Cli, run_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        status = await cli.status(run_id)
        return status if status["pending_approvals"] else None

    return await eventually(look)
