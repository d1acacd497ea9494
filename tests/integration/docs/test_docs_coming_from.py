"""The programs of docs/coming-from.md run: Loom's and those of the other frameworks, with a scripted model.

`make test-frameworks` installs the frameworks. Each program publishes only what has been approved.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from loom.testing.harness import Addresses
from loom.testing.model_server import Reply, SeenRequest, ThreadedModelServer, ToolUse, calls, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import mortal
from tests.docs_pages import ROOT, Block, blocks
from tests.forked_commands import forked

PYTHON: Final = os.environ.get("LOOM_TEST_FRAMEWORKS", "")
PAGE: Final = "docs/coming-from.md"
LOOM, *OTHERS = (block for block in blocks("python") if block.page == PAGE)
PUBLISH: Final = ToolUse("publish", {"title": "Tea"}, "call_1")
ANSWER: Final = "The article is in the paper."
NO: Final = (
    ('"type": "approve"', '"type": "reject"'),
    ("state.approve(", "state.reject("),
    ("tool_call_id: True", "tool_call_id: False"),
)
"""How each framework approves a call, and how it denies one."""
REACHES_NOTHING_ELSE: Final = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}


def reply(request: SeenRequest) -> Reply:
    """Ask to publish the article, and then answer."""
    said = calls(PUBLISH) if request.index == 0 else text(ANSWER)
    return Reply(raw=json.dumps(as_response(said)).encode()) if request.path == "/v1/responses" else said


def as_response(said: Reply) -> dict[str, Any]:
    """The reply as OpenAI's API for responses sends it."""
    message = {"type": "output_text", "text": said.text, "annotations": []}
    output: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": f"fc_{use.id}",
            "call_id": use.id,
            "name": use.name,
            "arguments": json.dumps(use.arguments),
            "status": "completed",
        }
        for use in said.calls
    ] or [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [message]}]
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": "gpt-5.2",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        },
    }


def run_with(program: str, folder: Path) -> tuple[str, list[SeenRequest]]:
    """What a program prints, and what it asks the model."""
    with ThreadedModelServer(reply) as model:
        env = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": model.openai_url, "OPENAI_API_KEY": "key"}
        ran = subprocess.run(
            [PYTHON, "-c", program],
            env=env | REACHES_NOTHING_ELSE,
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout, model.requests


@pytest.mark.skipif(not PYTHON, reason="needs other frameworks: make test-frameworks")
@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_a_program_of_another_framework_publishes_what_is_approved(block: Block, tmp_path: Path) -> None:
    printed, (first, second) = run_with(block.text, tmp_path)
    assert printed == f"{ANSWER}\n"
    assert "You edit articles." in json.dumps(first.body)
    assert "published Tea" in json.dumps(second.body)

    [(yes, no)] = [each for each in NO if each[0] in block.text]
    printed, (_, second) = run_with(block.text.replace(yes, no), tmp_path)
    assert printed == f"{ANSWER}\n"
    assert "published Tea" not in json.dumps(second.body)


@pytest.mark.parametrize("answer", ["approve", pytest.param("deny", marks=pytest.mark.slow)])
async def test_loom_s_program_waits_until_somebody_answers_from_elsewhere(
    addresses: Addresses, workspace: Path, answer: str
) -> None:
    (workspace / "editor.py").write_text(LOOM.text)
    app = {"LOOM_APP": "editor:app", "PYTHONPATH": str(workspace)}
    async with mortal(addresses, workspace, [calls(PUBLISH), text(ANSWER)]) as (loom, model, workers):
        await workers.start(**app)
        program = await asyncio.create_subprocess_exec(
            sys.executable, "editor.py", env={**workers.env, **app}, cwd=workspace, stdout=asyncio.subprocess.PIPE
        )

        async def waiting() -> str | None:
            query = f"TaskQueue = '{loom.settings.task_queue}' AND LoomWaitingOn = 'approval'"
            return next(iter([each.id async for each in loom.client.temporal.list_workflows(query)]), None)

        run_id = await eventually(waiting)
        loom.started.append(run_id)
        answering = await asyncio.create_subprocess_exec(*forked(answer, run_id), env={**workers.env}, cwd=workspace)
        assert await answering.wait() == 0
        printed, _ = await program.communicate()
        assert (program.returncode, printed.decode()) == (0, f"{ANSWER}\n")
        assert ("published Tea" in json.dumps(model.requests[-1].body)) is (answer == "approve")


def test_the_page_names_the_versions_that_are_tested() -> None:
    pins = dict(
        re.findall(r"^([\w-]+)(?:\[\w+\])?==(\d+\.\d+)", (ROOT / "tests/frameworks.txt").read_text(), re.MULTILINE)
    )
    named = dict(
        re.findall(r"(LangChain|LangGraph|OpenAI Agents SDK|Pydantic AI) (\d+\.\d+)", (ROOT / PAGE).read_text())
    )
    assert named == {
        "LangChain": pins["langchain"],
        "LangGraph": pins["langgraph"],
        "OpenAI Agents SDK": pins["openai-agents"],
        "Pydantic AI": pins["pydantic-ai-slim"],
    }
