"""The pattern `tree` on a real server: branches are child runs, their answers are scored, the best goes on."""

import json
from typing import Any

import pytest

from loom.domain.core.requests import RunError, RunResult, RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, hang, status, text
from loom.testing.stream import told
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import by_task

FAILS = status(401, message="no such key")
JUDGE = "Several agents have done the same task"


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
    assert "no member produced an answer: branch-1: LLMConfigurationError" in error.message
    assert len(model.requests) == 2


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    last = [prompt for prompt in prompts(model.requests) if "of 2, level 4 of 4." in prompt]
    assert len(last) == 2
    assert all("- Be brief." in prompt for prompt in last)
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


@pytest.mark.slow
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
