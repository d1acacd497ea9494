"""`create_plan`: steps that wait for each other, each a run of its own below the plan's."""

from pathlib import Path
from typing import Any

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, status, text
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import by_task

GOAL = "Compare two libraries"


def plan(*steps: dict[str, Any], call_id: str = "p1") -> Reply:
    """A turn that carries out a plan."""
    return calls(ToolUse("create_plan", {"goal": GOAL, "steps": list(steps)}, call_id))


READ_A = {"id": "read-a", "task": "READ A"}
READ_B = {"id": "read-b", "task": "READ B"}
REPORT = {"id": "report", "task": "REPORT", "after": ["read-a", "read-b"]}


async def test_steps_run_side_by_side_and_in_their_order(working: Working) -> None:
    loom, model = await working(
        by_task(
            {
                "ROOT": [plan(READ_A, READ_B, REPORT), text("the plan is done")],
                "READ A": [text("a is fast")],
                "READ B": [text("b is small")],
                "REPORT": [text("take a")],
            }
        )
    )
    run_id = await loom.start("ROOT")
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "the plan is done")
    told = str(model.requests[-1].messages[-1]["content"])
    for line in ("## read-a: done", "a is fast", "## read-b: done", "b is small", "## report: done", "take a"):
        assert line in told
    asked = [str(request.messages[1]["content"]) for request in model.requests]
    report = next(prompt for prompt in asked if "Your part: REPORT" in prompt)
    assert "a is fast" in report
    assert "b is small" in report
    (below,) = result.children
    assert (below["description"], below["status"], below["sub_agents"]) == (f"plan: {GOAL}", "completed", 3)


async def test_what_waits_for_a_failed_step_is_not_begun_and_the_plan_is_revised(working: Working) -> None:
    loom, model = await working(
        by_task(
            {
                "ROOT": [
                    plan(READ_A, READ_B, REPORT),
                    plan({"id": "report", "task": "REPORT without b"}, call_id="p2"),
                    text("revised"),
                ],
                "READ A": [text("a is fast")],
                "READ B": [status(400)],
                "REPORT": [text("take a")],
            }
        )
    )
    result = await loom.run("ROOT")

    assert result.output == "revised"
    first, second = [m["content"] for m in model.requests[-1].messages if m["role"] == "tool"]
    assert "## read-b: failed" in first
    assert "## report: not begun, since a step that it waits for failed" in first
    assert "## report: done" in second


async def test_a_plan_with_a_circle_is_refused_and_says_which(working: Working) -> None:
    circle = plan({**READ_A, "after": ["report"]}, READ_B, REPORT)
    unknown = plan({**READ_A, "after": ["nothing"]}, call_id="p2")
    foreign = plan({**READ_A, "tools": ["teleport"]}, call_id="p3")
    nobody = plan({**READ_A, "agent": "nobody"}, call_id="p4")
    replies = [circle, unknown, foreign, nobody, text("well then")]
    loom, model = await working(by_task({"ROOT": replies}))
    result = await loom.run("ROOT")

    assert (result.status, len(result.children)) == (RunStatus.COMPLETED, 0)
    said = [m["content"] for m in model.requests[-1].messages if m["role"] == "tool"]
    assert "these steps wait for each other: read-a → report → read-a; remove one `after`" in said[0]
    assert "step 'read-a' waits for 'nothing', which is not a step: the steps are read-a" in said[1]
    assert "step 'read-a': you do not have teleport yourself" in said[2]
    assert "there is no agent 'nobody'" in said[3]


async def test_a_person_reviews_a_plan_where_rules_say_so(working: Working) -> None:
    loom, model = await working(
        by_task({"ROOT": [plan(READ_A, READ_B), text("done")], "READ A": [text("a")], "READ B": [text("b")]})
    )
    run_id = await loom.start("ROOT", permissions={"create_plan": "ask"})
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert ask["tool"] == "create_plan"
    assert [step["id"] for step in ask["arguments"]["steps"]] == ["read-a", "read-b"]

    await loom.client.approve(run_id, "p1", arguments={"goal": GOAL, "steps": [READ_A]}, by="ann")
    await loom.client.result(run_id)

    assert not any("READ B" in str(request.messages[1]["content"]) for request in model.requests)


@pytest.mark.slow
async def test_an_ask_of_a_step_is_answered_at_the_root_and_an_abort_ends_them_all(
    working: Working, workspace: Path
) -> None:
    step = {"id": "make", "task": "MAKE"}
    bash = calls(ToolUse("bash", {"command": "echo made > made.txt"}, "b1"))
    loom, _ = await working(by_task({"ROOT": [plan(step), text("done")], "MAKE": [bash, text("made")]}))
    run_id = await loom.start("ROOT")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    assert (ask["tool"], ask["depth"]) == ("bash", 2)
    await loom.client.approve(run_id, digest=ask["digest"])
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "made.txt").read_text() == "made\n"

    other = await loom.start("ROOT")
    (ask,) = (await loom.asked(other))["pending_approvals"]
    await loom.client.abort(other)
    assert (await loom.client.result(other)).status is RunStatus.ABORTED

    async def step_ended() -> bool:
        return (await loom.client.result(ask["run_id"])).status is RunStatus.ABORTED

    await eventually(step_ended)


async def test_a_step_does_not_plan_again(working: Working) -> None:
    def reply(request: SeenRequest) -> Reply:
        task = str(request.messages[1]["content"])
        if "ROOT" in task:
            return (plan(READ_A), text("done"))[min(request.turn, 1)]
        return text("a")

    loom, model = await working(reply)
    await loom.run("ROOT")
    offered = {
        "ROOT" in str(request.messages[1]["content"]): {tool["function"]["name"] for tool in request.body["tools"]}
        for request in model.requests
    }
    assert "create_plan" in offered[True]
    assert not {"create_plan", "delegate_task"} & offered[False]


@pytest.mark.parametrize("rule", ["delegate_task(writer)", "delegate_task(agent:writer)", "create_plan(writer)"])
async def test_a_rule_about_an_agent_holds_for_a_step_too(working: Working, rule: str) -> None:
    steps = {"id": "w", "task": "WRITE IT", "agent": "writer"}, {"id": "a", "task": "READ A"}
    loom, model = await working(
        by_task({"ROOT": [plan(*steps), plan(steps[1]), text("ok")], "READ A": [text("a is fast")]}),
        app="tests.delegation_app:app",
    )
    result = await loom.run("ROOT", permissions={rule: "deny"})

    assert [child["description"] for child in result.children] == [f"plan: {GOAL}"]
    said = [m["content"] for m in model.requests[-1].messages if m["role"] == "tool"]
    assert f"denied by the rule {rule}" in said[0]
    assert "## a: done" in said[1]


async def test_a_tool_that_the_run_made_itself_is_not_handed_on_to_steps(working: Working) -> None:
    made = {
        "name": "one",
        "description": "One.",
        "parameters": {"type": "object"},
        "code": "def run():\n    return 1\n",
    }
    own = {**READ_A, "tools": ["made__one"]}
    replies = [calls(ToolUse("create_tool", made)), plan(own), plan(READ_A, call_id="p2"), text("ok")]
    loom, model = await working(by_task({"ROOT": replies, "READ A": [text("a is fast")]}), dynamic_tools="on")
    await loom.run("ROOT", permissions={"create_tool": "allow"})

    _, refused, carried_out = [m["content"] for m in model.requests[-1].messages if m["role"] == "tool"]
    assert "you do not have made__one yourself" in refused
    assert "## read-a: done" in carried_out


async def test_a_plan_adds_no_rules_to_those_of_the_run_that_made_it(working: Working, workspace: Path) -> None:
    bash = calls(ToolUse("bash", {"command": "echo made > made.txt"}, "b1"))
    step = {"id": "make", "task": "MAKE"}
    loom, _ = await working(
        by_task({"ROOT": [plan(step), text("done")], "MAKE": [bash, text("made")]}), max_mode="bypass"
    )

    result = await loom.run("ROOT", mode="bypass")

    assert (result.status, (workspace / "made.txt").exists()) == (RunStatus.COMPLETED, True)


async def test_new_rules_of_the_run_that_made_a_plan_are_those_of_the_plan(working: Working, workspace: Path) -> None:
    write = calls(ToolUse("write_file", {"path": "out.txt", "content": "x"}, "w1"))
    step = {"id": "w", "task": "WRITE IT", "agent": "writer"}
    loom, _ = await working(
        by_task({"ROOT": [plan(step), text("ok")], "WRITE IT": [write, text("written")]}),
        app="tests.delegation_app:app",
    )
    run_id = await loom.start("ROOT", permissions={"write_file": "ask"})
    await loom.asked(run_id)

    await loom.client.set_permissions(run_id, {"write_file": "allow"})

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").exists()
