"""What an agent's runs have come to, as the server's own list of runs tells it."""

from pathlib import Path
from uuid import uuid4

import pytest

from loom.domain.agents.stats import AgentStats, NodeState
from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, text
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working


async def counted(loom: Harness, agent: str, runs: int, state: NodeState) -> AgentStats:
    """The figures, once the server lists that many runs in that state."""

    async def look() -> AgentStats | None:
        stats = await loom.client.agent_stats(agent)
        return stats if (stats.execution_count, stats.state) == (runs, state) else None

    return await eventually(look)


async def test_state_and_figures_follow_an_agents_runs(working: Working, tmp_path: Path) -> None:
    agent = f"clerk {uuid4().hex[:8]}"
    app = tmp_path / "mine.py"
    app.write_text(f"from loom import *\napp = LoomApp()\napp.create_agent({agent!r})\n")

    def reply(request: SeenRequest) -> Reply:
        asks = "delete it" in str(request.messages[1:]) and request.turn == 0
        return calls(ToolUse("bash", {"command": "ls"})) if asks else text("done")

    loom, _ = await working(reply, app=f"{app}:app")
    assert await loom.client.agent_stats(agent) == AgentStats()

    await loom.run(agent=agent)
    first = await counted(loom, agent, 1, NodeState.COMPLETED)
    assert (first.success_count, first.failure_count, first.running_count) == (1, 0, 0)
    assert first.total_duration > 0
    assert first.last_execution is not None

    waiting = await loom.start("delete it", agent=agent)
    await loom.asked(waiting)
    going = await counted(loom, agent, 2, NodeState.RUNNING)
    assert (going.running_count, going.success_count, going.total_duration) == (1, 1, first.total_duration)

    await loom.client.abort(waiting)
    await loom.client.result(waiting)
    ended = await counted(loom, agent, 2, NodeState.IDLE)
    assert (ended.success_count, ended.failure_count) == (1, 0)
    assert ended.total_duration > first.total_duration


async def test_a_run_that_continued_as_new_counts_once(working: Working, tmp_path: Path) -> None:
    agent = f"long {uuid4().hex[:8]}"
    app = tmp_path / "mine.py"
    app.write_text(f"from loom import *\napp = LoomApp()\napp.create_agent({agent!r})\n")
    use = ToolUse("list_dir", {"path": "."})
    loom, _ = await working(
        lambda request: calls(use) if request.turn < 24 else text("done"), app=f"{app}:app", rotate_after_events=100
    )
    assert (await loom.client.estimate(agent)).runs == 0
    run_id = await loom.start(agent=agent)
    result = await loom.client.result(run_id)
    assert len(await loom.histories(run_id)) > 1
    stats = await counted(loom, agent, 1, NodeState.COMPLETED)
    assert (stats.success_count, stats.running_count) == (1, 0)

    estimate = await loom.client.estimate(agent, model="openai:scripted")
    assert (estimate.runs, estimate.unknown, estimate.cost) == (1, 1, None)
    assert estimate.tokens is not None
    assert estimate.seconds is not None
    assert estimate.tokens.median == result.usage["total_tokens"]
    assert estimate.seconds.median == pytest.approx(stats.total_duration, abs=0.1)
    assert (await loom.client.estimate(agent, model="openai:other")).runs == 0
