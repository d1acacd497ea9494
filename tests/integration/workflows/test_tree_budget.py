"""One budget for a tree of runs on a real server: ten children at once never spend more than there is."""

import json
from dataclasses import replace
from typing import Any

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_server import Reply, Script, SeenRequest, ToolUse, calls, hang, script, text
from loom.testing.stream import told
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

LOOK = calls(ToolUse("glob", {"pattern": "*"}))


def spending(replies: dict[str, list[Reply]], *, prompt: int = 1000, answer: int = 300) -> Script:
    """The same replies with what they use up; a last answer, which has no tools, is always a summary."""
    script = by_task(replies)

    def reply(seen: SeenRequest) -> Reply:
        said = script(seen) if seen.body.get("tools") else text("summed up")
        return replace(said, usage=(prompt + 100 * seen.turn, answer, 0))

    return reply


@pytest.mark.slow
async def test_ten_children_at_once_keep_within_one_budget_and_all_sum_up(working: Working) -> None:
    ten = [delegate(f"part {n}", f"WORK {n}", f"c{n}") for n in range(10)]
    loom, model = await working(spending({"the root": [calls(*ten), text("all in all")], "WORK": [LOOK] * 50}))

    result = await loom.run("the root", budget={"tokens": 150_000}, max_turns=50)

    assert {child["status"] for child in result.children} <= {"budget_exhausted", "limit_reached"}
    assert "budget_exhausted" in {child["status"] for child in result.children}
    assert 100_000 < result.usage["total_tokens"] <= 150_000
    told = [json.loads(m["content"]) for m in model.requests[-1].messages if m["role"] == "tool"]
    assert [answer["result"] for answer in told] == ["summed up"] * 10


RATINGS = {"confidence": 0.9, "coverage": 1.0, "novelty": 0.25}
RATED: dict[str, Any] = {"loom": {"evaluate": True}}


@pytest.mark.parametrize(
    ("budget", "used", "is_rated"),
    [
        ({"tokens": 40_000}, 38_500, False),
        ({"tokens": 43_000}, 38_500, True),
        ({"cost_usd": 0.7}, 38_500, False),  # 0.6 are spent, and a rating may take 0.15 and more
        ({"cost_usd": 0.9}, 38_500, True),
    ],
)
async def test_an_answer_is_rated_where_all_of_that_call_is_covered_and_it_counts(
    working: Working, budget: dict[str, Any], used: int, is_rated: bool
) -> None:
    rated = text(json.dumps(RATINGS))
    loom, model = await working(
        script([replace(text("Four."), usage=(used, 300, 0)), replace(rated, usage=(500, 100, 0))]),
        unknown_price="assume",
    )

    run_id = await loom.start(budget=budget, metadata=RATED)
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "Four.")
    assert result.quality_metrics == (RATINGS if is_rated else None)
    assert (len(model.requests), result.usage["total_tokens"]) == ((2, 39_400) if is_rated else (1, 38_800))
    assert result.cost is not None
    assert result.cost <= budget.get("cost_usd", 1)
    events = [event.task for event in await told(loom.client, run_id)]
    warned = [task.parameters["text"] for task in events if task.action is Action.BUDGET]
    assert any("The answer is not evaluated" in said for said in warned) is not is_rated


@pytest.mark.slow
async def test_a_child_that_needs_more_asks_and_what_another_gave_back_is_used(working: Working) -> None:
    two = [delegate("short", "SHORT", "c1"), delegate("long", "LONG", "c2")]
    loom, _ = await working(
        spending(
            {"the root": [calls(*two), text("ok")], "SHORT": [text("quick")], "LONG": [*[LOOK] * 8, text("at last")]}
        )
    )

    result = await loom.run("the root", budget={"tokens": 45_000})

    statuses = {child["description"]: child["status"] for child in result.children}
    assert statuses == {"short": "completed", "long": "completed"}
    assert result.usage["total_tokens"] <= 45_000


async def test_a_grandchild_gets_more_from_its_grandparent(working: Working) -> None:
    down = ["delegate_task", "glob"]
    loom, _ = await working(
        spending(
            {
                "LEVEL0": [calls(delegate("one", "LEVEL1", tools=down)), text("top")],
                "LEVEL1": [calls(delegate("two", "LEVEL2", tools=down)), text("middle")],
                "LEVEL2": [*[LOOK] * 8, text("low")],
            }
        )
    )

    result = await loom.run("LEVEL0", budget={"tokens": 60_000})

    (child,) = result.children
    assert (result.status, child["status"], child["sub_agents"]) == (RunStatus.COMPLETED, "completed", 1)
    assert (child["turn"], child["all_turns"]) == (2, 11)
    assert result.usage["model_calls"] == 13


@pytest.mark.parametrize(
    ("budget", "limit"),
    [({"turns": 6}, "turns_in_all"), ({"tool_calls": 4}, "tool_calls"), ({"cost_usd": 0.8}, "cost_usd")],
)
async def test_turns_tool_calls_and_money_are_one_budget_too(
    working: Working, budget: dict[str, Any], limit: str
) -> None:
    loom, _ = await working(
        spending({"the root": [calls(delegate("w", "WORK")), *[LOOK] * 9], "WORK": [LOOK] * 50}),
        unknown_price="assume",
    )

    result = await loom.run("the root", budget=budget)

    assert result.status is RunStatus.BUDGET_EXHAUSTED
    assert result.error is not None
    assert result.error.context["limit"] == limit
    assert result.output == "summed up"


async def test_handing_over_work_is_a_tool_call_too_and_counts_before_the_children_spend_theirs(
    working: Working,
) -> None:
    three = [delegate(f"part {n}", f"WORK {n}", f"c{n}") for n in range(3)]
    loom, _ = await working(spending({"the root": [calls(*three), text("ok")], "WORK": [LOOK] * 50}))

    result = await loom.run("the root", budget={"tool_calls": 7})

    assert result.tool_calls == 7


@pytest.mark.slow
async def test_what_a_child_was_lent_is_gone_when_nobody_can_tell_what_it_has_spent(working: Working) -> None:
    hanging = "WORK until it hangs"
    loom, model = await working(
        spending({"the root": [calls(delegate("w", hanging)), *[LOOK] * 50], hanging: [*[LOOK] * 6, hang()]})
    )
    run_id = await loom.start("the root", budget={"tokens": 60_000}, max_turns=100)
    await eventually(lambda: hangs(model.requests, hanging))
    (child,) = await loom.below(run_id)

    await loom.client.temporal.get_workflow_handle(child).terminate("gone")

    result = await loom.client.result(run_id)
    spent = [1300 + 100 * each.turn for each in model.requests if hanging in str(each.messages[1])][:-1]
    assert sum(spent) == 9300
    assert result.status is RunStatus.BUDGET_EXHAUSTED
    assert result.usage["total_tokens"] + sum(spent) <= 60_000


async def hangs(requests: list[SeenRequest], task: str) -> bool:
    """Whether the run of this task has come to the call that hangs."""
    return sum(task in str(request.messages[1]) for request in requests) == 7
