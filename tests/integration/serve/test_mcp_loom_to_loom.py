"""Loom as the MCP server of another Loom: a run of the one is a task of the other."""

import json
from pathlib import Path

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.tools.mcp_servers import McpServer
from loom.testing.harness import Addresses
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.serve.conftest import Serving
from tests.integration.workflows.test_mcp_input import the_ask
from tests.integration.workflows.test_mcp_runs import read_by_model, working_with


@pytest.mark.slow
async def test_the_questions_of_a_run_reach_the_person_of_the_run_that_started_it(
    serving: Serving, addresses: Addresses, workspace: Path
) -> None:
    api = await serving(
        script(
            [
                calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"})),
                calls(ToolUse("ask_user", {"question": "Which colour?"})),
                text("It is painted."),
            ]
        )
    )
    token = {"Authorization": api.http.headers["Authorization"]}
    server = McpServer(name="other", url=f"{api.url}/mcp", headers=token)
    task = {"task": "paint it", "run_id": "painted", "workspace": str(workspace)}
    answers = script([calls(ToolUse("mcp__other__start_run", task)), text("Done.")])
    async with working_with(addresses, workspace, answers, server) as (loom, model):
        run_id = await loom.start(permissions={"default": "allow"})
        asked = await the_ask(loom, run_id)
        assert asked["question"].startswith("The MCP server other asks: write_file: ")
        await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"], arguments={"approved": True})
        await loom.until(run_id, lambda status: "colour" in str(status["pending_approvals"]))
        asked = await the_ask(loom, run_id)
        await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"], arguments={"answer": "Blue"})
        result = await loom.client.result(run_id)

    api.loom.started.append("painted")
    assert (result.status, result.tool_calls) == (RunStatus.COMPLETED, 1)
    read = json.loads(read_by_model(model, -1)[0])
    assert (read["run_id"], read["result"]["output"]) == ("painted", "It is painted.")
    assert (workspace / "a.txt").read_text() == "new\n"
