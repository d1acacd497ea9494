"""The pattern `tree` on a real server: branches are child runs, their answers are scored, the best goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loom_domain.requests import RunError, RunResult, RunStatus
from loom_domain.tasks import Action
from tests.harness import Harness
from tests.model_server import Reply, SeenRequest, ToolUse, calls, hang, status, text
from tests.stream import told
from tests.trees import by_task, delegate
from tests.waiting import eventually
from tests.workflows.conftest import Working

FAILS = status(401, message="no such key")
JUDGE = "Several agents have done the same task"
WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


def tree(**given: Any) -> dict[str, Any]:
    """The metadata that ask for the pattern."""
    return {"loom": {"pattern": "tree", **given}}


def scores(*given: float) -> Reply:
    """What a judge answers."""
    return text(
        json.dumps({f"answer_{n}": {"reason": f"reason {n}", "score": score} for n, score in enumerate(given, 1)})
    )


def branches(*replies: Reply, level: str = "") -> dict[str, list[Reply]]:
    """A reply of each branch."""
    return {f"You are branch {number} of {len(replies)}{level}.": [reply] for number, reply in enumerate(replies, 1)}


def error_of(result: RunResult) -> RunError:
    """Why a run failed."""
    assert result.status is RunStatus.FAILED, result
    assert result.error is not None
    return result.error


def prompts(requests: list[SeenRequest]) -> list[str]:
    """What each model call was told first."""
    return [next(str(m["content"]) for m in request.messages if m["role"] == "user") for request in requests]


async def choices(loom: Harness, run_id: str) -> list[dict[str, Any]]:
    """What the stream says was chosen."""
    plans = [e.task.parameters for e in await told(loom.client, run_id) if e.task.action is Action.PLANNING]
    return [plan["choice"] for plan in plans if "choice" in plan and plan["turn"]]


async def summaries(loom: Harness, run_id: str) -> list[str]:
    """What the Web UI says of each step of the run, those that were asked for twice included."""
    (history,) = await loom.histories(run_id)
    scheduled = [event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]
    steps = [
        event
        for event in scheduled
        if event.activity_task_scheduled_event_attributes.activity_type.name == "conduct_crew"
    ]
    return [json.loads(event.user_metadata.summary.data) for event in steps]


async def test_the_best_of_three_is_the_answer_and_everybody_sees_why(working: Working) -> None:
    replies = {**branches(text("Bonn"), text("Berlin"), text("Paris")), JUDGE: [scores(0.3, 0.9, 0.1)]}
    loom, model = await working(by_task(replies))

    run_id = await loom.start("Name the city.", metadata=tree())
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "Berlin", 3)
    done = [(child["description"], child["status"]) for child in result.children]
    assert done == [
        ("branch 1 of 3", "completed"),
        ("branch 2 of 3", "completed"),
        ("branch 3 of 3", "completed"),
        ("score 3 answers", "completed"),
    ]
    assert len(model.requests) == result.usage["model_calls"] == 4
    assert all("a way of your own" in prompt for prompt in prompts(model.requests)[:3])
    own = [event for event in await told(loom.client, run_id) if event.task.run_id == run_id]
    assert next(e.task.parameters["pattern"] for e in own if e.task.action is Action.START) == "tree"
    plans = [e.task.parameters for e in own if e.task.action is Action.PLANNING]
    assert [plan["text"] for plan in plans] == [
        "Level 1 of 1: branch-1, branch-2, branch-3",
        "Level 1 of 1: score 3 answers",
        "Berlin",
    ]
    assert plans[-1]["choice"] == {
        "member": "branch-2",
        "by": "score",
        "reason": "0.90: reason 2",
        "key": "b1.2",
        "scores": [
            {"key": "b1.1", "member": "branch-1", "score": 0.3, "reason": "reason 1"},
            {"key": "b1.2", "member": "branch-2", "score": 0.9, "reason": "reason 2"},
            {"key": "b1.3", "member": "branch-3", "score": 0.1, "reason": "reason 3"},
        ],
    }
    assert await summaries(loom, run_id) == [f"t{turn} · tree default: what comes next" for turn in (1, 2, 3)]


async def test_a_failing_branch_is_left_out(working: Working) -> None:
    replies = {**branches(FAILS, text("two"), text("three")), JUDGE: [scores(0.2, 0.8)]}
    loom, model = await working(by_task(replies))

    run_id = await loom.start(metadata=tree())
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "three")
    assert [child["status"] for child in result.children] == ["failed", "completed", "completed", "completed"]
    assert "answer_3" not in prompts(model.requests)[-1]


async def test_a_tree_of_which_every_branch_fails_has_failed(working: Working) -> None:
    loom, model = await working(by_task(branches(FAILS, FAILS)))

    error = error_of(await loom.run(metadata=tree(branches=2)))

    assert error.type == "CrewFailedError"
    assert "no member came to an answer: branch-1: LLMConfigurationError" in error.message
    assert len(model.requests) == 2


async def test_the_best_is_carried_on_to_the_next_level(working: Working) -> None:
    second = branches(text("Berlin!"), text("Berlin, the capital"), level=", level 2 of 2")
    first = branches(text("Bonn"), text("Berlin"), level=", level 1 of 2")
    judged = iter([scores(0.3, 0.6), scores(0.7, 0.8)])
    tasks = by_task({**first, **second})
    loom, model = await working(lambda request: next(judged) if JUDGE in prompts([request])[0] else tasks(request))

    run_id = await loom.start("Name the city.", metadata=tree(branches=2, rounds=2))
    result = await loom.client.result(run_id)

    assert (result.output, result.turns) == ("Berlin, the capital", 5)
    later = [prompt for prompt in prompts(model.requests) if "level 2 of 2" in prompt]
    assert len(later) == 2
    for prompt in later:
        assert "The best answer so far (score: 0.60: reason 2)" in prompt
        assert "Berlin" in prompt
        assert "Bonn" not in prompt
    assert [(chosen["key"], chosen["reason"]) for chosen in await choices(loom, run_id)] == [
        ("b1.2", "0.60: reason 2"),
        ("b2.2", "0.80: reason 2"),
    ]


async def test_scores_that_do_not_fit_are_repaired_and_else_the_first_answer_counts(working: Working) -> None:
    mended = {**branches(text("one"), text("two")), JUDGE: [text("The second."), scores(0.1, 0.2)]}
    loom, model = await working(by_task(mended))
    assert (await loom.run(metadata=tree(branches=2))).output == "two"
    assert "does not fit the schema" in str(model.requests[-1].messages[-1])

    odd, _ = await working(by_task({**mended, JUDGE: [text("The second.")]}))
    run_id = await odd.start(metadata=tree(branches=2))
    assert (await odd.client.result(run_id)).output == "one"
    (chosen,) = await choices(odd, run_id)
    assert (chosen["member"], chosen["by"]) == ("branch-1", "fallback")
    assert "the answers could not be scored (OutputSchemaError" in chosen["reason"]
    assert chosen["reason"].endswith("so the first one goes on")


async def test_an_answer_has_the_form_that_was_asked_for(working: Working) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    replies: dict[str, list[Reply]] = {
        "You are branch 1 of 2.": [text('{"n": "many"}'), text('{"n": 1}')],
        "You are branch 2 of 2.": [text('```json\n{"n": 2}\n```')],
        JUDGE: [scores(0.1, 0.2)],
    }
    loom, _ = await working(by_task(replies))

    result = await loom.run(metadata=tree(branches=2), output_schema=schema)

    assert (result.status, result.structured_output) == (RunStatus.COMPLETED, {"n": 2})


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
    app = tmp_path / "grove.py"
    app.write_text(
        "from loom_app import LoomApp\n"
        "app = LoomApp()\n"
        "app.create_agent('thinker', pattern='tree', branches=2, permissions={'default': 'allow'})\n"
    )
    replies: dict[str, list[Reply]] = {
        "LOOK": [text("seen")],
        "You are branch 1 of 2.": [calls(delegate("look", "LOOK", "c1")), text("one")],
        "You are branch 2 of 2.": [text("two")],
        JUDGE: [scores(0.9, 0.2)],
    }
    loom, model = await working(by_task(replies), app=f"{app}:app")

    result = await loom.run(agent="thinker")

    assert (result.output, len(model.requests)) == ("one", 5)
    assert [child["sub_agents"] for child in result.children] == [1, 0, 0]


async def test_a_sub_agent_branches_where_there_is_room_below_it(working: Working, tmp_path: Path) -> None:
    app = tmp_path / "grove.py"
    app.write_text(
        "from loom_app import LoomApp\napp = LoomApp()\napp.create_agent('thinker', pattern='tree', branches=2)\n"
    )
    replies: dict[str, list[Reply]] = {
        **branches(text("one"), text("two")),
        JUDGE: [scores(0.9, 0.2)],
        "ROOT": [calls(delegate("think", "THINK", "c1", agent="thinker")), text("over")],
    }
    allowed, model = await working(by_task(replies), app=f"{app}:app")
    assert (await allowed.run("ROOT")).output == "over"
    assert '"result": "one"' in str(model.requests[-1].messages[-1]["content"])

    shallow, model = await working(by_task(replies), app=f"{app}:app", max_depth=1)
    assert (await shallow.run("ROOT")).output == "over"
    assert "the pattern tree needs sub-agents" in str(model.requests[-1].messages[-1]["content"])


async def test_a_sub_agent_gives_its_branches_no_more_tools_than_it_has(working: Working, tmp_path: Path) -> None:
    app = tmp_path / "grove.py"
    app.write_text(
        "from loom_app import LoomApp\napp = LoomApp()\napp.create_agent('thinker', pattern='tree', branches=2)\n"
    )
    replies: dict[str, list[Reply]] = {
        **branches(text("one"), text("two")),
        JUDGE: [scores(0.9, 0.2)],
        "ROOT": [calls(delegate("think", "THINK", "c1", agent="thinker", tools=["glob"])), text("over")],
    }
    loom, model = await working(by_task(replies), app=f"{app}:app")

    assert (await loom.run("ROOT")).output == "over"

    offered = [
        {tool["function"]["name"] for tool in request.body["tools"]}
        for request in model.requests
        if "You are branch" in prompts([request])[0]
    ]
    assert offered == [{"glob", "done"}] * 2
    judge = next(request for request in model.requests if JUDGE in prompts([request])[0])
    assert [tool["function"]["name"] for tool in judge.body["tools"]] == ["done"]


async def test_a_tree_is_told_something_and_rotated_and_its_answer_rated(working: Working) -> None:
    ratings = {"confidence": 0.9, "coverage": 1.0, "novelty": 0.25}

    def reply(request: SeenRequest) -> Reply:
        prompt = prompts([request])[0]
        if "Rate the answer strictly" in prompt:
            return text(json.dumps(ratings))
        return scores(0.1, 0.2) if JUDGE in prompt else text("part", chunks=3, delay=0.1)

    loom, model = await working(reply, rotate_after_events=100)
    run_id = await loom.start(metadata=tree(branches=2, rounds=4, evaluate=True))
    await loom.until(run_id, lambda seen: len(seen["children"]) >= 2)
    await loom.client.send(run_id, "Be brief.", by="ann")
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.quality_metrics) == (RunStatus.COMPLETED, "part", ratings)
    assert len(result.children) == 4 * 3
    assert "- Be brief." in [prompt for prompt in prompts(model.requests) if "level 4 of 4" in prompt][-1]
    assert sum("Rate the answer strictly" in prompt for prompt in prompts(model.requests)) == 1
    assert len(await loom.histories(run_id)) > 1
    assert [chosen["key"] for chosen in await choices(loom, run_id)] == ["b1.2", "b2.2", "b3.2", "b4.2"]


async def test_a_crew_file_has_the_mode_too(working: Working) -> None:
    members = [{"name": "poet", "task": "In verse."}, {"name": "clerk", "task": "In prose."}]
    replies: dict[str, list[Reply]] = {
        "In verse.": [text("o city")],
        "In prose.": [text("city")],
        JUDGE: [scores(1, 0)],
    }
    loom, _ = await working(by_task(replies))
    run_id = await loom.client.start_crew(
        {"name": "team", "mode": "tree", "members": members}, "The task.", workspace=str(loom.workspace)
    )
    loom.started.append(run_id)
    assert (await loom.client.result(run_id)).output == "o city"
    assert (await loom.client.status(run_id))["status"] == "completed"


async def test_a_tree_is_forked_from_one_of_its_turns(working: Working) -> None:
    replies = {**branches(text("one"), text("two")), JUDGE: [scores(0.1, 0.2), scores(0.1, 0.2)]}
    loom, model = await working(by_task(replies))
    origin = await loom.start(metadata=tree(branches=2))
    await loom.client.result(origin)

    fork = await loom.client.fork(origin, turn=1, model="anthropic:scripted")
    loom.started.append(fork)
    result = await loom.client.result(fork)

    assert (result.output, len(model.requests)) == ("two", 4)
    assert "claude" not in str(result.error)


@pytest.mark.parametrize(
    ("request_", "field", "says"),
    [
        ({"metadata": tree(branches=1)}, "metadata.loom", "branches are a number from 2 to 10, not 1"),
        ({"metadata": tree(branches="3")}, "metadata.loom", "branches are a number from 2 to 10, not '3'"),
        ({"metadata": tree(rounds=6)}, "rounds", "the pattern tree has at most 5 rounds, not 6"),
        ({"metadata": {"loom": {"pattern": "trees"}}}, "metadata.loom", "one of react, reflect, tree, not 'trees'"),
        ({"metadata": tree(branches=10, rounds=2)}, "branches", "starts up to 22 sub-agents"),
        ({"metadata": tree(), "max_turns": 2}, "max_turns", "takes 3 turns itself"),
        ({"metadata": tree(), "budget": {"depth": 0}}, "pattern", "0 levels of them are allowed"),
    ],
)
async def test_what_cannot_be_is_refused(working: Working, request_: dict[str, Any], field: str, says: str) -> None:
    loom, model = await working(by_task({}))
    error = error_of(await loom.run(**request_))
    assert (error.type, error.context["field"]) == ("BadRequest", field)
    assert says in error.message
    assert model.requests == []


async def test_people_see_the_choice_in_status_and_details(working: Working) -> None:
    replies = {
        **branches(text("Bonn"), text("Berlin"), level=", level 1 of 2"),
        **branches(hang(), hang(), level=", level 2 of 2"),
        JUDGE: [scores(0.3, 0.6)],
    }
    loom, _ = await working(by_task(replies))
    run_id = await loom.start("Name the city.", metadata=tree(branches=2, rounds=2))

    seen = await loom.until(run_id, lambda status: status["choice"] is not None)
    assert (seen["choice"]["member"], seen["choice"]["reason"]) == ("branch-2", "0.60: reason 2")

    async def details() -> str | None:
        handle = loom.client.temporal.get_workflow_handle(run_id)
        shown = str(await handle.query("__temporal_workflow_metadata"))
        return shown if "chosen: branch-2" in shown else None

    shown = await eventually(details)
    assert "pattern tree (2 branches, 2 rounds)" in shown
    assert "0.30 · branch-1: reason 1" in shown
    await loom.client.abort(run_id)
    await loom.client.result(run_id)
