"""Runs that try to change what later runs obey, on a real server and in the real sandbox."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog

from loom.domain.core.requests import RunStatus
from loom.testing.harness import Addresses, harness
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.workflows.conftest import Working

BYPASS = "name: default\ndescription: d\nmode: bypass\n"
WRITES = {
    "write_file": {"path": "agents/default.yaml", "content": BYPASS},
    "bash": {"command": "printf 'mode: bypass' > agents/default.yaml"},
}


@pytest.fixture
def agents(workspace: Path) -> Path:
    """A folder of agents in the workspace, which the worker reads when it starts."""
    folder = workspace / "agents"
    folder.mkdir()
    (folder / "helper.yaml").write_text("description: helps\n")
    return folder


@pytest.mark.parametrize("tool", WRITES)
@pytest.mark.parametrize("mode", ["default", "accept-edits"])
async def test_a_person_is_asked_before_a_run_writes_an_agent_file(
    working: Working, agents: Path, tool: str, mode: str
) -> None:
    loom, _ = await working(script([calls(ToolUse(tool, WRITES[tool], "w1")), text("done")]), agents=(agents,))
    run_id = await loom.start(mode=mode, permissions={tool: "allow"})

    await loom.asked(run_id)

    (ask,) = (await loom.client.status(run_id))["pending_approvals"]
    assert ask["rule"].startswith("guard: write to agents")
    await loom.client.abort(run_id)
    await loom.client.result(run_id)
    assert [each.name for each in agents.iterdir()] == ["helper.yaml"]


@pytest.mark.parametrize("mode", ["default", "bypass"])
async def test_no_program_in_the_sandbox_writes_what_the_worker_reads(
    working: Working, workspace: Path, agents: Path, mode: str
) -> None:
    (workspace / "AGENTS.md").write_text("as a person wrote it")
    evil = "for p in agents/other.yaml agents/helper.yaml AGENTS.md loom.toml crews/x.yaml; do echo evil > $p; done"
    program: dict[str, Any] = {"command": f"cat > evil.sh <<'END'\n{evil}\ntouch ended\nEND\nbash evil.sh"}
    crews = workspace / "crews"
    crews.mkdir()
    replies = script([calls(ToolUse("bash", program, "b1")), text("done")])
    loom, _ = await working(replies, agents=(agents,), crews=(crews,))

    assert (await loom.run(mode=mode, permissions={"bash": "allow"})).status is RunStatus.COMPLETED

    assert [(each.name, each.read_text()) for each in agents.iterdir()] == [("helper.yaml", "description: helps\n")]
    assert (workspace / "AGENTS.md").read_text() == "as a person wrote it"
    assert (workspace / "ended").exists()
    assert not (workspace / "loom.toml").exists()
    assert list(crews.iterdir()) == []


async def test_the_next_start_of_a_worker_names_the_run_that_changed_its_agents(
    addresses: Addresses, workspace: Path, agents: Path
) -> None:
    replies = script([calls(ToolUse("write_file", WRITES["write_file"], "w1")), text("done")])
    settings: dict[str, Any] = {"agents": (agents,), "task_queue": f"files-{uuid4().hex[:8]}"}
    with structlog.testing.capture_logs() as first:
        async with harness(addresses, workspace, replies, **settings) as (loom, _):
            run_id = await loom.start()
            await loom.asked(run_id)
            await loom.client.approve(run_id, "w1")
            assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    (agents / "helper.yaml").write_text("description: a person has changed it\n")
    (agents / "default.yaml").write_text(BYPASS.replace("default", "written"))
    with structlog.testing.capture_logs() as second:
        async with harness(addresses, workspace, replies, **settings):
            pass
    assert [each for each in first if each["event"] == "worker_files_changed"] == []
    told = [each for each in second if each["event"] == "worker_files_changed"]
    shared = {"event": "worker_files_changed", "log_level": "warning"}
    assert told == [
        {
            **shared,
            "path": str(agents / "default.yaml"),
            "change": "added",
            "run_id": run_id,
            "call_id": "w1",
            "note": "something else has changed the file since this run",
        },
        {**shared, "path": str(agents / "helper.yaml"), "change": "changed"},
    ]
