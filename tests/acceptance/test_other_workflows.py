"""Another team's workflows, in Python and TypeScript, start an agent as a child without a line of Loom's code."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from textwrap import indent
from typing import Any, Final
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from loom import LoomApp, errors
from loom.testing import ToolUse, calls, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Working
from tests.docs_pages import blocks_of

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "other_workflows"
NODE: Final = os.environ.get("LOOM_TEST_NODE", "")
SCRIPT: Final = [calls(ToolUse("refund", {"number": 7})), text("Order 7 is paid back.")]


def shop() -> LoomApp:
    """The agent that both workflows know by its name."""
    app = LoomApp()

    @app.tool(effect="once")
    def refund(number: int) -> str:
        """Pay an order back."""
        return f"order {number} is paid back"

    app.create_agent("support", description="Pays orders back.", system_prompt="Help.", tools=["refund"])
    return app


async def refunded(working: Working, *command: str, cwd: Path) -> tuple[Any, str]:
    """What the other team's program prints, and what it says meanwhile."""
    loom, _ = await working(SCRIPT, app=shop(), temporal_namespace="default")
    env = {"TEMPORAL_ADDRESS": loom.settings.temporal_address, "LOOM_TASK_QUEUE": loom.settings.task_queue}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    # The SDK's own threads can abort Python 3.11 while it exits, when everything is done.
    assert process.returncode in (0, -signal.SIGABRT, -signal.SIGSEGV), err.decode()
    return json.loads(out), err.decode()


RESULT: Final = {"status": "completed", "output": "Order 7 is paid back.", "toolCalls": 1}


async def test_a_workflow_in_python(working: Working) -> None:
    root = EXAMPLE.parents[1]
    result, told = await refunded(working, sys.executable, "-m", "examples.other_workflows.python.refund", cwd=root)
    assert result == RESULT
    assert 'the agent asks for refund({"number": 7})' in told


@pytest.mark.skipif(not NODE, reason="needs packages from npm: make test-node")
async def test_a_workflow_in_typescript(working: Working, tmp_path: Path) -> None:
    folder = shutil.copytree(
        EXAMPLE / "typescript", tmp_path / "typescript", ignore=shutil.ignore_patterns("node_modules")
    )
    (folder / "node_modules").symlink_to(Path(NODE, "other_workflows", "typescript", "node_modules"))
    result, told = await refunded(working, "node", "refund.js", cwd=folder)
    assert result == RESULT
    assert 'the agent asks for refund({"number":7})' in told


def test_the_examples_import_nothing_of_loom_s() -> None:
    for file in (*EXAMPLE.rglob("*.py"), *EXAMPLE.glob("typescript/*.js")):
        assert not re.search(r"\b(from|import) loom\b|require\('loom", file.read_text()), file


WORKFLOW: Final = """
from temporalio import workflow

@workflow.defn(sandboxed=False)
class OfThePage:
    def __init__(self):
        self.is_approved = False

    @workflow.signal
    def approve(self):
        self.is_approved = True

    @workflow.run
    async def run(self, run_id: str) -> dict:
{block}
        return result
"""


async def test_the_page_s_lines_are_a_workflow(working: Working) -> None:
    loom, _ = await working(SCRIPT, app=shop(), temporal_namespace="default")
    (block,) = blocks_of("docs/other_workflows.md", "python")
    lines = block.text.replace('task_queue="loom"', f'task_queue="{loom.settings.task_queue}"')
    names: dict[str, Any] = {"__name__": __name__}
    exec(WORKFLOW.format(block=indent(lines, " " * 8)), names)
    client = await Client.connect(loom.settings.temporal_address, namespace=loom.settings.temporal_namespace)
    queue, run_id = f"refunds-{uuid4().hex[:8]}", f"test-{uuid4().hex[:8]}"
    async with Worker(client, task_queue=queue, workflows=[names["OfThePage"]]):
        handle = await client.start_workflow("OfThePage", run_id, id=f"refund-{run_id}", task_queue=queue)

        async def asks() -> bool:
            try:
                return bool((await loom.client.status(run_id))["pending_approvals"])
            except errors.RunNotFoundError:  # the workflow hasn't started it yet
                return False

        await eventually(asks)
        await handle.signal("approve")
        assert (await handle.result())["output"] == "Order 7 is paid back."
