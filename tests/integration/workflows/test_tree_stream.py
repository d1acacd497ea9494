"""The live stream of a tree: what happens below reaches the streams of all runs above, once and in order."""

from collections.abc import Sequence

from loom.domain.core.tasks import Action
from loom.testing.model_server import ToolUse, calls, text
from loom.testing.stream import count, told
from loom.watching import Streamed
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

DOWN = ["delegate_task", "glob"]


def of(events: Sequence[Streamed], run_id: str) -> list[str]:
    """What the events of one run are, in their order."""
    return [event.task.action.value for event in events if event.task.run_id == run_id]


async def test_the_root_sees_everything_below_it_in_order_and_ends_with_its_own_end(working: Working) -> None:
    look = calls(ToolUse("glob", {"pattern": "*"}, "g1"))
    loom, _ = await working(
        by_task(
            {
                "LEVEL0": [calls(delegate("one", "LEVEL1", "c0", tools=DOWN)), text("top")],
                "LEVEL1": [calls(delegate("two", "LEVEL2", "c1", tools=DOWN)), text("middle")],
                "LEVEL2": [look, text("lowest of all", chunks=3)],
            }
        )
    )
    run_id = await loom.start("LEVEL0")
    await loom.client.result(run_id)
    child, grandchild = await loom.below(run_id)

    events = await told(loom.client, run_id)

    assert [event.offset for event in events] == list(range(1, len(events) + 1))
    assert len({event.task.task_id for event in events if event.task.action is not Action.THINKING}) == sum(
        event.task.action is not Action.THINKING for event in events
    )
    assert (events[-1].task.action, events[-1].task.run_id) == (Action.COMPLETE, run_id)
    assert {event.task.root_run_id for event in events} == {run_id}
    for below in (child, grandchild):
        own = of(await told(loom.client, below), below)
        assert of(events, below) == own
        assert (own[0], own[-1]) == ("node.start", "node.complete")
    assert of(await told(loom.client, child), grandchild) == of(events, grandchild)


async def test_work_that_is_handed_over_stands_before_it_is_done_and_its_result_after(working: Working) -> None:
    loom, _ = await working(
        by_task(
            {
                "LEVEL0": [calls(delegate("one", "LEVEL1", "c0", tools=DOWN)), text("top")],
                "LEVEL1": [calls(delegate("two", "LEVEL2", "c1", tools=DOWN)), text("middle")],
                "LEVEL2": [text("low")],
            }
        )
    )
    run_id = await loom.start("LEVEL0")
    await loom.client.result(run_id)
    child, grandchild = await loom.below(run_id)

    events = [event.task for event in await told(loom.client, run_id)]

    order = [(task.action, task.run_id) for task in events]
    assert order.index((Action.EXECUTE, run_id)) < order.index((Action.START, child))
    assert order.index((Action.EXECUTE, child)) < order.index((Action.START, grandchild))
    assert order.index((Action.COMPLETE, grandchild)) < order.index((Action.TOOL_RESULT, child))
    assert order.index((Action.COMPLETE, child)) < order.index((Action.TOOL_RESULT, run_id))
    handed_over = {task.task_id: task for task in events if task.action is Action.EXECUTE}
    assert {task.target_agent for task in handed_over.values()} == {"default"}
    begun = [task for task in events if task.action is Action.START and task.run_id != run_id]
    assert [handed_over[task.parent_task_id or ""].parameters["child_run_id"] for task in begun] == [child, grandchild]
    depths = {task.run_id: task.parameters["depth"] for task in events if task.action is Action.TURN}
    assert depths == {run_id: 0, child: 1, grandchild: 2}


async def test_the_text_of_each_of_several_children_is_whole_in_the_stream_of_the_root(working: Working) -> None:
    four = [delegate(f"part {n}", f"WORK {n}", f"c{n}") for n in range(4)]
    answers = {f"WORK {n}": [text(f"answer number {n} in several pieces", chunks=6, delay=0.01)] for n in range(4)}
    loom, _ = await working(by_task({"the root": [calls(*four), text("all")], **answers}))
    run_id = await loom.start("the root")
    await loom.client.result(run_id)

    events = await told(loom.client, run_id)

    said: dict[str, str] = {}
    for event in events:
        if event.task.action is Action.THINKING:
            said[event.task.run_id] = said.get(event.task.run_id, "") + event.task.parameters["content"]
    children = await loom.below(run_id)
    assert said == {run_id: "all", **{c: f"answer number {n} in several pieces" for n, c in enumerate(children)}}
    assert count(events, Action.EXECUTE) == 4
