"""Options of model calls, from agents, requests and forks to the provider."""

from pathlib import Path
from typing import Any

import pytest

from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunStatus
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.activities.test_responses import CALL, THOUGHT, done, ended, says
from tests.integration.workflows.conftest import Working

AGENTS = """
from loom import LoomApp

app = LoomApp()
app.create_agent("thinker", model_options={"reasoning_effort": "high", "extra_headers": {"X-Team": "research"}})
app.create_agent("parrot", extends="thinker", model_options={"seed": 7})
app.create_agent("careful", extends="parrot", fallbacks=["anthropic:scripted"])
"""
NAMES = ("reasoning_effort", "seed", "top_p")


@pytest.fixture
def app(tmp_path: Path) -> str:
    """Agents that extend each other."""
    (tmp_path / "agents_app.py").write_text(AGENTS, encoding="utf-8")
    return f"{tmp_path / 'agents_app.py'}:app"


async def test_a_request_s_options_are_merged_over_those_of_the_agent_and_its_parents(
    working: Working, app: str
) -> None:
    loom, model = await working(script([text("ok")] * 3), app=app)
    await loom.run(agent="parrot")
    await loom.run(agent="parrot", model_options={"reasoning_effort": "low", "top_p": 0.5})
    await loom.run()

    assert [[request.body.get(name) for name in NAMES] for request in model.requests[:3]] == [
        ["high", 7, None],
        ["low", 7, 0.5],
        [None, None, None],
    ]
    assert [request.headers.get("x-team") for request in model.requests[:3]] == ["research", "research", None]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"agent": "careful"}, "anthropic:scripted doesn't support `seed`"),
        ({"model": "anthropic:x", "model_options": {"thinking_budget": 9000}}, "must be below max_output_tokens"),
    ],
)
async def test_options_that_cannot_be_followed_are_refused_before_the_first_turn(
    working: Working, app: str, request_: Any, says: str
) -> None:
    loom, model = await working(script([]), app=app)
    result = await loom.run(**request_)
    assert (result.status, result.error.type) == (RunStatus.FAILED, "BadRequest")
    assert says in result.error.message
    assert model.count == 0


async def test_a_client_refuses_an_option_that_does_not_exist(working: Working) -> None:
    loom, _ = await working(script([]))
    client: LoomClient = loom.client
    with pytest.raises(BadRequest, match=r"model_options.efort is not an option") as caught:
        await client.start("x", model_options={"efort": "high"})  # type: ignore[arg-type]
    assert caught.value.context == {"field": "model_options.efort"}


async def test_a_retry_with_a_model_that_lacks_an_option_says_so(working: Working) -> None:
    loom, _ = await working(script([calls(ToolUse("nothing", {})), text("ok")]), max_turns=1, patience=0)
    run_id = await loom.start(model_options={"seed": 1})
    first = await loom.client.result(run_id)
    assert first.status is RunStatus.LIMIT_REACHED
    await loom.client.retry(run_id, model="anthropic:x", max_turns=5)
    result = await loom.client.result(run_id)
    assert result.error is not None
    assert "x doesn't support `seed`" in result.error.message


async def test_a_fork_s_options_are_merged_over_those_of_the_run(working: Working, app: str) -> None:
    loom, model = await working(script([text("ok")] * 2), app=app)
    run_id = await loom.start(agent="parrot")
    await loom.client.result(run_id)
    await loom.client.result(await loom.client.fork(run_id, turn=0, model_options={"top_p": 0.5}))
    assert [model.requests[1].body.get(name) for name in NAMES] == ["high", 7, 0.5]


async def test_the_limit_of_an_answer_is_what_the_agent_says(working: Working) -> None:
    loom, model = await working(script([text("ok")]), max_output_tokens=100)
    await loom.run()
    assert model.requests[0].body["max_tokens"] == 100


async def test_a_run_over_the_responses_api_keeps_the_reasoning_of_its_calls(working: Working, workspace: Path) -> None:
    (workspace / "a").write_text("text of a")
    loom, model = await working(script([ended(*done(THOUGHT, CALL)), ended(says("read"))]))
    result = await loom.run(model="openai-responses:gpt-5.2")
    assert (result.status, result.output) == (RunStatus.COMPLETED, "read")
    asked, thought, call, output = model.requests[1].body["input"]
    assert asked["role"] == "user"
    assert (thought, call["name"]) == (THOUGHT, "read_file")
    assert "text of a" in output["output"]
    assert result.usage["input_tokens"] == 20
