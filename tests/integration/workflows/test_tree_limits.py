"""What a run of the pattern `tree` may not do: more than sub-agents may, more than its budget, deeper than allowed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, hang, text
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_tree_pattern import JUDGE, branches, error_of, prompts, scores, tree
from tests.trees import by_task, delegate

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
APP = "from loom import LoomApp\napp = LoomApp()\napp.create_agent('thinker', pattern='tree', branches=2{})\n"


def app_of(folder: Path, more: str = "") -> str:
    """An app with an agent of the pattern."""
    (folder / "grove.py").write_text(APP.format(more))
    return f"{folder / 'grove.py'}:app"


@pytest.mark.slow
async def test_branches_may_no_more_than_sub_agents(working: Working) -> None:
    replies: dict[str, list[Reply]] = {
        "You are branch 1 of 2.": [calls(WRITE), text("one")],
        "You are branch 2 of 2.": [text("two")],
        JUDGE: [scores(0.1, 0.2)],
    }
    loom, model = await working(by_task(replies), app="tests.delegation_app:app")

    await loom.run(metadata=tree(branches=2))
    assert not (loom.workspace / "out.txt").exists()
    refused = [str(m["content"]) for request in model.requests for m in request.messages if m["role"] == "tool"]
    assert any("deny" in said or "denied" in said or "not allowed" in said for said in refused), refused

    asked = await loom.start(agent="writer", metadata=tree(branches=2), permissions={"write_file": "ask"})
    (ask,) = (await loom.asked(asked))["pending_approvals"]
    assert (ask["tool"], ask["depth"]) == ("write_file", 1)
    await loom.client.approve(asked, ask["call_id"], digest=ask["digest"])
    assert (await loom.client.result(asked)).output == "two"
    assert (loom.workspace / "out.txt").read_text() == "hello"


async def test_aborting_a_tree_ends_its_branches(working: Working) -> None:
    loom, _ = await working(by_task(branches(hang(), hang())))
    run_id = await loom.start(metadata=tree(branches=2))
    await loom.until(run_id, lambda seen: [c["status"] for c in seen["children"]] == ["running"] * 2)
    members = await loom.below(run_id)

    await loom.client.abort(run_id, reason="enough", by="ann")

    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
    assert [(await loom.client.result(member)).status for member in members] == [RunStatus.ABORTED] * 2


@pytest.mark.slow
async def test_a_spent_budget_ends_a_tree_as_it_ends_a_crew(working: Working) -> None:
    def reply(request: SeenRequest) -> Reply:
        if JUDGE in prompts([request])[0]:
            return replace(scores(0.1, 0.2), usage=(3000, 500, 0))
        return replace(text("a part"), usage=(3000, 500, 0))

    loom, _ = await working(reply)

    result = await loom.run(metadata=tree(branches=2, rounds=5), budget={"tokens": 30_000})

    assert result.status is RunStatus.BUDGET_EXHAUSTED
    assert result.output.startswith("The crew had to end before it was done.")
    assert "a part" in result.output
    assert result.usage["total_tokens"] <= 30_000


async def test_a_definition_asks_for_it_and_what_branches_delegate_does_not_branch_again(
    working: Working, tmp_path: Path
) -> None:
    replies: dict[str, list[Reply]] = {
        "LOOK": [text("seen")],
        "You are branch 1 of 2.": [calls(delegate("look", "LOOK", "c1")), text("one")],
        "You are branch 2 of 2.": [text("two")],
        JUDGE: [scores(0.9, 0.2)],
    }
    loom, model = await working(by_task(replies), app=app_of(tmp_path, ", permissions={'default': 'allow'}"))

    result = await loom.run(agent="thinker")

    assert (result.output, len(model.requests)) == ("one", 5)
    assert [child["sub_agents"] for child in result.children] == [1, 0, 0]


@pytest.mark.slow
async def test_a_sub_agent_branches_where_there_is_room_below_it(working: Working, tmp_path: Path) -> None:
    replies: dict[str, list[Reply]] = {
        **branches(text("one"), text("two")),
        JUDGE: [scores(0.9, 0.2)],
        "ROOT": [calls(delegate("think", "THINK", "c1", agent="thinker")), text("over")],
    }
    allowed, model = await working(by_task(replies), app=app_of(tmp_path))
    assert (await allowed.run("ROOT")).output == "over"
    assert '"result": "one"' in str(model.requests[-1].messages[-1]["content"])

    shallow, model = await working(by_task(replies), app=app_of(tmp_path), max_depth=1)
    assert (await shallow.run("ROOT")).output == "over"
    assert "the `tree` pattern needs sub-agents" in str(model.requests[-1].messages[-1]["content"])


async def test_a_sub_agent_gives_its_branches_no_more_tools_than_it_has(working: Working, tmp_path: Path) -> None:
    replies: dict[str, list[Reply]] = {
        **branches(text("one"), text("two")),
        JUDGE: [scores(0.9, 0.2)],
        "ROOT": [calls(delegate("think", "THINK", "c1", agent="thinker", tools=["glob"])), text("over")],
    }
    loom, model = await working(by_task(replies), app=app_of(tmp_path))

    assert (await loom.run("ROOT")).output == "over"

    offered = [
        {tool["function"]["name"] for tool in request.body["tools"]}
        for request in model.requests
        if "You are branch" in prompts([request])[0]
    ]
    assert offered == [{"glob", "done"}] * 2
    judge = next(request for request in model.requests if JUDGE in prompts([request])[0])
    assert [tool["function"]["name"] for tool in judge.body["tools"]] == ["done"]


@pytest.mark.parametrize(
    ("request_", "field", "says"),
    [
        ({"metadata": tree(branches=1)}, "metadata.loom", "branches must be a number from 2 to 10, not 1"),
        ({"metadata": tree(branches="3")}, "metadata.loom", "branches must be a number from 2 to 10, not '3'"),
        ({"metadata": tree(rounds=6)}, "rounds", "the `tree` pattern has at most 5 rounds, not 6"),
        ({"metadata": {"loom": {"pattern": "trees"}}}, "metadata.loom", "one of react, reflect, tree, not 'trees'"),
        ({"metadata": tree(branches=10, rounds=2)}, "branches", "starts up to 22 sub-agents"),
        ({"metadata": tree(), "max_turns": 2}, "max_turns", "must be at least 3, not 2"),
        ({"metadata": tree(), "budget": {"depth": 0}}, "pattern", "at most 0 levels are allowed"),
    ],
)
async def test_what_cannot_be_is_refused(working: Working, request_: dict[str, Any], field: str, says: str) -> None:
    loom, model = await working(by_task({}))
    error = error_of(await loom.run_unseen(**request_))
    assert (error.type, error.context["field"]) == ("BadRequest", field)
    assert says in error.message
    assert model.requests == []
