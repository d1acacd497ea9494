"""What is made again from a run's history is what its activities told live: the same ids, the same contents."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import WorkflowHistory

from loom.activities.adapters.redaction.mask import SecretMask
from loom.activities.adapters.redis.stream import dump_json, load_json
from loom.activities.adapters.temporal.history_facts import TemporalHistories, facts_of
from loom.activities.memory.histories import UnreadableHistory
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.domain.core.tasks import SHOWN_ONLY, Action, Task
from loom.domain.history.facts import Fact
from loom.domain.history.task_rebuilding import tasks_of
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, status, text
from loom.testing.stream import told
from loom.testing.waiting import eventually
from loom.workflows.payload_converter import data_converter
from tests.integration.workflows.conftest import Working
from tests.replay.record import STORIES

HISTORIES: Final = Path(__file__).parents[2] / "replay" / "histories"
MASK: Final = OutputSanitizer(SecretMask(frozenset()), None)
LONG: Final = "much to write " * 100
ALLOWED: Final = {"write_file": "allow"}


async def _arguments_out_of_line(loom: Any) -> str:
    return str(await loom.start(permissions=ALLOWED, session_id="s-1", metadata={"ticket": 7}))


async def _model_gives_up(loom: Any) -> str:
    return str(await loom.start())


async def _calls_not_run(loom: Any) -> str:
    run_id = await loom.start(permissions={"write_file": "deny", "bash": "ask"})
    await loom.asked(run_id)
    await loom.client.deny(run_id, "b1", reason="no", by="ann")
    return str(run_id)


async def _short_of_tokens(loom: Any) -> str:
    return str(await loom.start(budget={"tokens": 40_000}))


MORE: Final[dict[str, tuple[Any, Any, dict[str, Any]]]] = {
    "long-arguments": (
        _arguments_out_of_line,
        script([calls(ToolUse("write_file", {"path": "a.txt", "content": LONG}, "w1")), text("done")]),
        {},
    ),
    "calls-not-run": (
        _calls_not_run,
        script(
            [
                calls(
                    ToolUse("read_file", {"file": "a.txt"}, "r1"),
                    ToolUse("read_fil", {"path": LONG}, "r2"),
                    ToolUse("write_file", {"path": "b", "content": "c"}, "w1"),
                    ToolUse("bash", {"command": "ls"}, "b1"),
                ),
                text("done"),
            ]
        ),
        {},
    ),
    "given-up": (_model_gives_up, script([status(400)]), {}),
    "short-of-tokens": (
        _short_of_tokens,
        script(
            [
                *(replace(calls(ToolUse("list_dir", {"path": "."}, f"l{n}")), usage=(9_000, 500, 0)) for n in range(4)),
                text("x"),
            ]
        ),
        {},
    ),
    "fallen-back": (
        _model_gives_up,
        script([*[status(429, retry_after=0.05)] * 3, text("done")]),
        {"fallback_models": ("anthropic:other",)},
    ),
}


NOT_ALIKE: Final = {
    "lost": "its worker, which stood still, told the stream late",
    "read-stalled": "its worker, which stood still, told the stream late",
    "child-terminated": "a terminated run says nothing of its end",
    "moved": "what it did before it moved is in the other server's history",
    "chatted": "history may not have the start of a call that a message interrupts at once",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*STORIES, *MORE) if name not in NOT_ALIKE])
async def test_the_tasks_of_a_live_run_can_be_made_again(working: Working, workspace: Path, name: str) -> None:
    (workspace / "a.txt").write_text("alpha\nbeta\n")
    story, replies, settings = {**STORIES, **MORE}[name]
    loom, _ = await working(replies, **settings)
    run_id = await story(loom)
    await loom.client.result(run_id)

    for each in (run_id, *await loom.below(run_id)):
        await assert_made_again(loom, each)


async def assert_made_again(loom: Harness, run_id: str) -> None:
    """Fail unless the tasks of the run, made again from its history, are those that its stream has."""
    told_live = [event.task for event in await told(loom.client, run_id)]
    live = [task for task in told_live if task.action not in SHOWN_ONLY and task.run_id == run_id]
    rebuilt = await _rebuilt(TemporalHistories(loom.client.temporal, loom.settings.task_queue), run_id)

    assert _comparable(rebuilt) == _comparable(live)
    times = [(task.created_at, seen.created_at) for task, seen in zip(_sorted(rebuilt), _sorted(live), strict=True)]
    assert [pair for pair in times if abs((pair[0] - pair[1]).total_seconds()) > 60] == []


async def _rebuilt(histories: TemporalHistories, run_id: str, since: datetime | None = None) -> Sequence[Task]:
    executions = [each async for each in histories.executions(run_id, since)]
    return [task for each in reversed(executions) for task in tasks_of(each.facts, MASK, earlier=each.earlier)]


async def test_a_run_that_waits_has_moved_and_one_that_ended_before_has_not(working: Working) -> None:
    loom, _ = await working(script([calls(ToolUse("write_file", {"path": "a", "content": "b"}, "w1")), text("done")]))
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    histories = TemporalHistories(loom.client.temporal, loom.settings.task_queue)
    assert Action.APPROVAL_REQUESTED in {task.action for task in await _rebuilt(histories, run_id)}

    async def looked(since: datetime | None, until: datetime) -> dict[str, int]:
        return {run.run_id: run.events async for run in histories.moved(since, until)}

    began = datetime.now(UTC)
    while_it_ran = (await looked(began, began))[run_id]
    await loom.client.approve(run_id)
    await loom.client.result(run_id)

    async def ended() -> int | None:
        return (await looked(began, datetime.now(UTC))).get(run_id)

    assert await eventually(ended) > while_it_ran
    assert run_id not in await looked(datetime.now(UTC), datetime.now(UTC))


@pytest.mark.slow
async def test_only_the_latest_executions_of_a_long_run_are_read_again(working: Working, workspace: Path) -> None:
    (workspace / "a.txt").write_text("alpha\n")
    reads = [calls(ToolUse("read_file", {"path": "a.txt", "limit": 1 + n}, f"r{n}")) for n in range(60)]
    loom, _ = await working(script([*reads, text("done")]), rotate_after_events=100)
    run_id = await loom.start("read it")
    await loom.client.result(run_id)
    histories = TemporalHistories(loom.client.temporal, loom.settings.task_queue)

    executions = [each.facts async for each in histories.executions(run_id)]
    tasks, again = await _rebuilt(histories, run_id), await _rebuilt(histories, run_id, datetime.now(UTC))

    assert len(executions) > 3
    assert len(again) < len(tasks) / 3
    assert again == tasks[-len(again) :]
    assert _sorted(tasks) == _sorted(tasks_of([fact for each in reversed(executions) for fact in each], MASK))


async def test_a_run_that_the_server_does_not_know_is_unreadable(working: Working) -> None:
    loom, _ = await working(script([]))
    with pytest.raises(UnreadableHistory, match="no-such-run"):
        await _rebuilt(TemporalHistories(loom.client.temporal, loom.settings.task_queue), "no-such-run")


RECORDED = sorted(
    {path.stem.rpartition("-")[0] for path in HISTORIES.glob("*.json") if "-upkeep-" not in path.stem}
    - {"0.4.0-child-terminated-below1", "0.4.0-moved", "0.4.0-files"}
    - {f"0.4.0-{story}-below{number}" for story in ("announced", "notified") for number in (1, 2)}
)
"""Release and story of each recorded run, which may have several histories; the upkeep of memory and the delivery of
notifications are no runs, nor is a request for files; a terminated run has no end, and one that moved began elsewhere.
"""


@pytest.mark.parametrize("recorded", RECORDED)
async def test_a_history_of_a_past_release_still_gives_its_tasks(recorded: str) -> None:
    name = recorded.partition("-")[2]
    paths = sorted(HISTORIES.glob(f"{recorded}-?.json"))
    facts: list[Fact] = []
    for path in paths:
        events = WorkflowHistory.from_json(name, path.read_text()).events
        facts += await facts_of(data_converter(), name, events)

    tasks = tasks_of(facts, MASK)

    actions = [task.action for task in tasks]
    ran = name not in ("refused", "unknown-agent")
    assert actions.count(Action.START) == ran
    assert [task.task_id for task in tasks if task.action in (Action.COMPLETE, Action.ERROR)] == [tasks[-1].task_id]
    replies = [task for task in tasks if task.action is Action.MODEL_CALL and task.status == "completed"]
    result = tasks[-1].result
    assert result is not None
    # A compression asks a model once, too, and has a task of its own; what sub-agents asked is in their histories.
    compressions = [task for task in tasks if task.action is Action.COMPRESSION and task.parameters["success"]]
    own = (result.get("own") or result)["usage"]
    assert len(replies) + len(compressions) == own["model_calls"]
    assert sum(task.result["length"] > 0 for task in tasks if task.action is Action.TOOL_RESULT and task.result) == len(
        [action for action in actions if action is Action.TOOL_RESULT]
    )
    assert len({task.task_id for task in tasks}) == len(tasks)


def _comparable(tasks: Sequence[Task]) -> list[Task]:
    """Without what only history's own times can say, in one order, as they read after a way through JSON."""
    return [_read(replace(task, parameters=_timeless(task.parameters))) for task in _sorted(tasks)]


def _sorted(tasks: Sequence[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: task.task_id)


def _read(task: Task) -> Task:
    return replace(load_json(Task, dump_json(Task, task)), created_at=task.created_at.min)


def _timeless(parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name not in ("ms", "duration_ms")}
