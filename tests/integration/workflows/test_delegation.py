"""Work handed to sub-agents, on a real server: child runs, their results, their limits."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.worker import Worker

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import SeenRequest, ToolUse, calls, script, status, text
from loom.workflows.options import TASK_TIMEOUT
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate


def tool_results(request: SeenRequest) -> list[str]:
    """What the model read last of its tools."""
    return [message["content"] for message in request.messages if message["role"] == "tool"]


def offered(request: SeenRequest) -> list[str]:
    """The tools that the model was offered."""
    return [tool["function"]["name"] for tool in request.body["tools"]]


async def test_a_sub_agent_works_on_its_own_and_its_answer_is_the_result(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("alpha")
    loom, model = await working(
        by_task(
            {
                "the root": [calls(delegate("read a", "read a.txt", context_hints=["it is short"])), text("all done")],
                "read a.txt": [calls(ToolUse("read_file", {"path": "a.txt"})), text("it says alpha")],
            }
        )
    )

    result = await loom.run("the root")

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "all done", 2)
    (child,) = result.children
    assert (child["description"], child["status"], child["turn"]) == ("read a", "completed", 2)
    assert result.usage["model_calls"] == 4
    assert result.own is not None
    assert result.own["usage"]["model_calls"] == 2
    (told,) = tool_results(model.requests[-1])
    assert json.loads(told) == {"task": "read a", "result": "it says alpha", "status": "completed"}
    seen = model.requests[1].messages[-1]["content"]
    assert "read a.txt" in seen
    assert "- it is short" in seen
    assert "the root" not in json.dumps(model.requests[1].messages)
    assert [tool["function"]["name"] for tool in model.requests[1].body["tools"]] == [
        "done",
        "glob",
        "grep",
        "read_file",
    ]


async def test_what_a_sub_agent_is_expressly_given_it_may_use_as_its_parent_may(
    working: Working, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("alpha")
    look = calls(ToolUse("list_dir", {"path": "."}), ToolUse("bash", {"command": "true"}, "c2"))
    loom, model = await working(
        by_task(
            {
                "the root": [
                    calls(delegate("look", "look round", tools=["list_dir", "bash", "write_file"])),
                    text("ok"),
                ],
                "look round": [look, text("a file")],
            }
        )
    )
    run_id = await loom.start("the root", permissions={"list_dir": "allow", "bash": "deny"})

    await loom.client.result(run_id)

    listed, denied = tool_results(model.requests[2])
    assert "a.txt" in listed
    assert "bash" in denied
    assert offered(model.requests[1]) == ["bash", "done", "list_dir"]


async def test_a_copy_of_an_agent_gets_no_tools_that_it_lacks(working: Working) -> None:
    loom, model = await working(
        by_task(
            {
                "the root": [calls(delegate("one", "one level", tools=["delegate_task", "glob"])), text("ok")],
                "one level": [calls(delegate("two", "two levels")), text("ok")],
                "two levels": [text("ok")],
            }
        )
    )

    await loom.run("the root")

    assert [offered(request) for request in model.requests[1:3]] == [
        ["delegate_task", "done", "glob"],
        ["done", "glob"],
    ]


async def test_several_sub_agents_work_at_once(working: Working) -> None:
    three = [delegate(f"part {n}", f"part {n} please", f"c{n}") for n in (1, 2, 3)]
    answers = {f"part {n} please": [text(f"done {n}", chunks=3, delay=0.3)] for n in (1, 2, 3)}
    loom, model = await working(by_task({"the root": [calls(*three), text("all")], **answers}))
    run_id = await loom.start("the root")

    together = await loom.until(run_id, lambda seen: [c["status"] for c in seen["children"]] == ["running"] * 3)
    result = await loom.client.result(run_id)

    assert together["waiting_on"].count("part") == 3
    assert [json.loads(told)["result"] for told in tool_results(model.requests[-1])] == ["done 1", "done 2", "done 3"]
    assert [child["status"] for child in result.children] == ["completed"] * 3


async def test_a_sub_agent_that_fails_is_a_result_and_the_run_goes_on(working: Working) -> None:
    loom, model = await working(
        by_task(
            {
                "the root": [calls(delegate("try", "hopeless")), text("so be it")],
                "hopeless": [status(401, message="no such key")],
            }
        )
    )

    result = await loom.run("the root")

    assert (result.status, result.output) == (RunStatus.COMPLETED, "so be it")
    told = json.loads(tool_results(model.requests[-1])[0])
    assert told["status"] == "failed"
    assert "LLMConfigurationError" in told["error"]


async def test_a_sub_agent_ends_at_its_own_limit_of_turns_and_its_parent_reads_what_it_had(working: Working) -> None:
    look = calls(ToolUse("glob", {"pattern": "*"}), text="still looking")
    loom, model = await working(
        by_task({"the root": [calls(delegate("look", "for ever")), text("enough")], "for ever": [look] * 12})
    )

    result = await loom.run("the root")

    (child,) = result.children
    assert (result.status, child["status"], child["turn"]) == (RunStatus.COMPLETED, "limit_reached", 10)
    assert json.loads(tool_results(model.requests[-1])[0])["status"] == "limit_reached"


async def test_unknown_tools_and_agents_are_told_to_the_model_and_nothing_is_started(working: Working) -> None:
    wrong = [delegate("a", "x", "c1", tools=["read_fil"]), delegate("b", "x", "c2", agent="reviewer")]
    loom, model = await working(by_task({"the root": [calls(*wrong), text("ah")]}))

    result = await loom.run("the root")

    tools, agent = tool_results(model.requests[-1])
    assert "'read_fil': did you mean 'read_file'?" in tools
    assert "there is no agent 'reviewer'" in agent
    assert result.children == ()


async def test_a_registered_agent_is_chosen_by_name(working: Working, workspace: Path) -> None:
    loom, model = await working(
        by_task(
            {"the root": [calls(delegate("w", "weather", agent="forecaster")), text("ok")], "weather": [text("sun")]}
        ),
        app="tests.delegation_app:app",
    )

    result = await loom.run("the root")

    assert [child["agent"] for child in result.children] == ["forecaster"]
    assert "You forecast." in model.requests[1].messages[0]["content"]
    assert "Registered agents: forecaster, writer" in json.dumps(model.requests[0].body["tools"])


@workflow.defn(sandboxed=False)
class Foreign:
    """A workflow of a team that uses Loom without its code."""

    @workflow.run
    async def run(self, queue: str, second: Any) -> Any:
        """Start a run and wait for its result."""
        request = {"task": "do it"}
        own = workflow.info().workflow_id
        return await workflow.execute_child_workflow(
            "AgentRun", args=[request, second], id=f"step-of-{own}", task_queue=queue
        )


@pytest.mark.parametrize("second", [{"trace": "x"}, "x", [1], None])
async def test_a_run_of_a_foreign_workflow_ignores_what_comes_beside_its_request(working: Working, second: Any) -> None:
    loom, _ = await working(script([text("done")]))
    temporal, queue = loom.client.temporal, f"foreign-{loom.settings.task_queue}"

    async with Worker(temporal, task_queue=queue, workflows=[Foreign]):
        result = await temporal.execute_workflow(
            "Foreign", args=[loom.settings.task_queue, second], id=f"foreign-{uuid4().hex[:8]}", task_queue=queue
        )

    assert (result["status"], result["output"], result["error"]) == ("completed", "done", None)


async def test_levels_and_number_of_sub_agents_are_limited(working: Working) -> None:
    deeper = delegate("deeper", "go deeper", tools=["delegate_task"])
    loom, model = await working(
        by_task({"go deeper": [calls(deeper, deeper), text("out")]}), max_depth=1, max_children=1
    )

    result = await loom.run("go deeper")

    assert len(result.children) == 1
    below, root = model.requests[2], model.requests[-1]
    assert "1 levels of sub-agents are allowed" in tool_results(below)[0]
    assert "all sub-agents that this tree may have are used up" in tool_results(root)[1]


async def test_runs_of_any_client_and_their_children_do_not_wait_long_for_a_worker_that_took_a_workflow_task(
    working: Working,
) -> None:
    loom, _ = await working(
        by_task({"WORK": [text("part done")], "PLAN": [calls(delegate("a part", "WORK")), text("done")]})
    )
    own = await loom.start("PLAN it")
    request = {"task": "PLAN it", "workspace": str(loom.workspace)}
    plain = await loom.client.temporal.start_workflow(
        "AgentRun", request, id=f"{own}-plain", task_queue=loom.settings.task_queue
    )
    for run_id in (own, plain.id):
        assert (await loom.client.result(run_id)).status == "completed"
        for each in (run_id, *await loom.below(run_id)):
            began = (await loom.histories(each))[0].events[0].workflow_execution_started_event_attributes
            assert began.workflow_task_timeout.ToTimedelta() == TASK_TIMEOUT
