"""Runs that use reference servers of the Model Context Protocol, which others have written.

`make test-mcp` installs the servers from npm and runs these tests.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from loom.activities.adapters.mcp.connection import ConnectionTimeouts
from loom.domain.core.requests import RunStatus
from loom.domain.tools.mcp_servers import McpServer
from loom.testing.harness import Addresses
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, script, text
from tests.integration.workflows.test_mcp_runs import read_by_model, working_with

pytestmark = pytest.mark.reference

USUAL = ConnectionTimeouts(first_pause=0.05, restart=15.0)
PROGRAMS = Path(os.environ.get("LOOM_TEST_MCP_SERVERS", "missing"))
"""The folder with the servers' programs."""
ALLOWED = {"default": "allow"}


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Let Node read the programs once, so that the servers are there when the first run begins."""
    for name in ("everything", "filesystem", "memory"):
        program = [PROGRAMS / f"mcp-server-{name}", *([PROGRAMS] if name == "filesystem" else [])]
        subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)


def everything() -> McpServer:
    return McpServer(name="everything", command=(str(PROGRAMS / "mcp-server-everything"),), sampling=True)


def said_last(model: ModelServer) -> str:
    return str(model.requests[-1].messages[-1]["content"])


async def test_a_person_fills_in_the_form_of_a_server(addresses: Addresses, workspace: Path) -> None:
    answers = script([calls(ToolUse("mcp__everything__trigger-elicitation-request", {})), text("done")])
    async with working_with(addresses, workspace, answers, everything(), patience=USUAL) as (loom, model):
        run_id = await loom.start(permissions=ALLOWED)
        (asked,) = (await loom.asked(run_id))["pending_approvals"]
        assert asked["schema"]["properties"]["name"]["type"] == "string"
        given = {"name": "Ada Lovelace", "check": True, "integer": 42}
        await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"], arguments=given)
        assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert "Ada Lovelace" in said_last(model)


async def test_a_server_asks_the_runs_model(addresses: Addresses, workspace: Path) -> None:
    ask = ToolUse("mcp__everything__trigger-sampling-request", {"prompt": "What is six times seven?", "maxTokens": 50})

    def answer(request: SeenRequest) -> Reply:
        if "What is six times seven?" in str(request.messages[-1]["content"]) and not request.body.get("tools"):
            return text("It is 42.")
        return text("done") if request.messages[-1]["role"] == "tool" else calls(ask)

    allowed = {**ALLOWED, "mcp_sampling(everything)": "allow"}
    async with working_with(addresses, workspace, answer, everything(), patience=USUAL) as (loom, model):
        result = await loom.run(permissions=allowed)
    assert result.status is RunStatus.COMPLETED
    assert "It is 42." in said_last(model)
    assert result.usage["model_calls"] == 3


async def test_a_model_reads_resources_and_prompts(addresses: Addresses, workspace: Path) -> None:
    answers = script(
        [
            calls(ToolUse("mcp__everything__list_resources", {})),
            calls(ToolUse("mcp__everything__read_resource", {"uri": "demo://resource/dynamic/text/1"})),
            calls(ToolUse("mcp__everything__get_prompt", {"name": "simple-prompt"})),
            text("done"),
        ]
    )
    async with working_with(addresses, workspace, answers, everything(), patience=USUAL) as (loom, model):
        assert (await loom.run(permissions=ALLOWED)).status is RunStatus.COMPLETED
    listed, read, prompt = (read_by_model(model, number)[-1] for number in (1, 2, 3))
    assert "demo://resource/dynamic/text/" in listed
    assert "Resource 1" in read
    assert prompt.startswith("user:")


async def test_files_are_read_within_the_servers_folder_only(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.txt").write_text("served text")
    files = McpServer(name="files", command=(str(PROGRAMS / "mcp-server-filesystem"), str(folder)))
    uses = [ToolUse("mcp__files__read_text_file", {"path": path}) for path in (f"{folder}/a.txt", "/etc/passwd")]
    answers = script([*(calls(use) for use in uses), text("done")])
    async with working_with(addresses, workspace, answers, files, patience=USUAL) as (loom, model):
        assert (await loom.run(permissions=ALLOWED)).status is RunStatus.COMPLETED
    assert "served text" in read_by_model(model, 1)[-1]
    assert "Access denied" in read_by_model(model, 2)[-1]


async def test_what_a_server_remembers_is_there_for_the_next_run(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    environment = {"MEMORY_FILE_PATH": str(tmp_path / "graph.json")}
    graph = McpServer(name="graph", command=(str(PROGRAMS / "mcp-server-memory"),), env=environment)
    entity = {"name": "Ghent", "entityType": "city", "observations": ["has the office"]}

    def answer(request: SeenRequest) -> Reply:
        if request.messages[-1]["role"] == "tool":
            return text("done")
        remembers = "remember" in str(request.messages[-1]["content"])
        if remembers:
            return calls(ToolUse("mcp__graph__create_entities", {"entities": [entity]}))
        return calls(ToolUse("mcp__graph__read_graph", {}))

    async with working_with(addresses, workspace, answer, graph, patience=USUAL) as (loom, model):
        await loom.run("remember the office", permissions=ALLOWED)
        await loom.run("where is it?", permissions=ALLOWED)
    assert json.dumps("has the office") in said_last(model)
