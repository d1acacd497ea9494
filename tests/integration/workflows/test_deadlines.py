"""A budget of time on a real server: a run ends in time wherever it waits, and a tree from below."""

import json
from typing import Any, Final

import pytest

from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, hang, script, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

SECONDS: Final = 5.0
SLEEP = calls(ToolUse("bash", {"command": "sleep 60"}, "s1"), text="looking")
ALLOWED: dict[str, Any] = {"permissions": {"bash": "allow"}}


async def took(loom: Harness, run_id: str) -> float:
    """Seconds between a run's beginning and its end, by the server's clock."""
    seen = await loom.client.temporal.get_workflow_handle(run_id).describe()
    assert seen.close_time is not None
    return (seen.close_time - seen.start_time).total_seconds()


def assert_out_of_time(result: RunResult, waited_on: str) -> None:
    """The run has ended because its time was over."""
    assert result.error is not None
    assert (result.status, result.error.context) == (RunStatus.BUDGET_EXHAUSTED, {"limit": "seconds"})
    assert f"while it waited on {waited_on}" in result.error.message


ASKS = calls(ToolUse("ask_user", {"question": "Which?"}), text="hm")
WAITING: dict[str, tuple[Reply, dict[str, Any], str, str]] = {
    "a tool": (SLEEP, ALLOWED, "tools: bash", "looking"),
    "its model": (hang(), {}, "model", ""),
    "an approval": (SLEEP, {}, "approval: bash", "looking"),
    "an answer": (ASKS, {}, "answer: Which?", "hm"),
    "a person who paused it": (SLEEP, {}, "resume", "looking"),
}
"""By what a run waits for: its model's reply, its request, what it says that it waits on, and its output."""


async def test_a_run_ends_at_its_deadline_wherever_it_waits(working: Working) -> None:
    loom, _ = await working(by_task({task: [reply] for task, (reply, *_) in WAITING.items()}))

    runs = {
        task: await loom.start(task, budget={"seconds": SECONDS}, **request)
        for task, (_, request, *_) in WAITING.items()
    }
    paused = runs["a person who paused it"]
    await loom.asked(paused)
    await loom.client.pause(paused, by="ann")

    for task, run_id in runs.items():
        result = await loom.client.result(run_id)
        *_, waited_on, output = WAITING[task]
        assert_out_of_time(result, waited_on)
        assert result.output == output
        assert await took(loom, run_id) >= SECONDS
        events = [event.task for event in await told(loom.client, run_id)]
        assert events[-1].action is Action.COMPLETE


@pytest.mark.slow
async def test_a_child_ends_before_its_parent_which_tells_what_it_brought(working: Working) -> None:
    def reply(seen: SeenRequest) -> Reply:
        return tree(seen) if seen.body.get("tools") else text("the part is not done")

    root = [calls(delegate("a part", "WORK", "c1", tools=["bash"]))]
    tree = by_task({"the root": root, "WORK": [SLEEP]})
    loom, model = await working(reply)

    run_id = await loom.start("the root", budget={"seconds": 15.0}, **ALLOWED)
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    await loom.client.approve(run_id, ask["call_id"])
    result = await loom.client.result(run_id)

    (child,) = result.children
    assert (result.status, child["status"]) == (RunStatus.BUDGET_EXHAUSTED, "budget_exhausted")
    assert result.output == "the part is not done"
    answer = json.loads(next(m["content"] for m in model.requests[-1].messages if m["role"] == "tool"))
    assert (answer["result"], answer["status"]) == ("looking", "budget_exhausted")
    assert await took(loom, run_id) >= 13.5


async def test_an_answer_is_not_lost_because_its_rating_takes_too_long(working: Working) -> None:
    loom, _ = await working(script([text("Four."), hang()]))

    result = await loom.run(budget={"seconds": SECONDS}, metadata={"loom": {"evaluate": True}})

    assert (result.status, result.output, result.quality_metrics) == (RunStatus.COMPLETED, "Four.", None)


@pytest.mark.slow
async def test_time_goes_on_across_continue_as_new(working: Working) -> None:
    often = calls(ToolUse("list_dir", {"path": "."}))

    def reply(seen: SeenRequest) -> Reply:
        return SLEEP if seen.index > 24 else often

    loom, _ = await working(reply, rotate_after_events=100)
    run_id = await loom.start(budget={"seconds": 12.0}, **ALLOWED)

    assert_out_of_time(await loom.client.result(run_id), "tools: bash")
    chain = await loom.histories(run_id)
    assert len(chain) > 1
    begun, ended = (chain[n].events[m].event_time.ToDatetime() for n, m in ((0, 0), (-1, -1)))
    assert (ended - begun).total_seconds() >= 12.0
