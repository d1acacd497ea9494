"""kill -9 of a worker, at every kind of moment: the run goes on elsewhere, and nothing finished is repeated."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.history.v1 import HistoryEvent

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, hang, script, text
from loom.testing.stream import assert_whole, count, texts, told
from loom.testing.waiting import PATIENCE, eventually
from loom.testing.worker_processes import Process, Workers
from loom.watching import Streamed
from tests.acceptance.conftest import Killable
from tests.processes import command_of

HEARTBEAT: Final = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
PATIENT: Final = (str(Path(__file__).with_name("patient_worker.py")),)
WRITE: Final = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


async def test_one_death_hits_a_model_call_a_tool_call_a_question_and_a_pause(
    killable: Killable, workspace: Path
) -> None:
    sleep = f"sleep 6{os.getpid()}.7"
    command = f"echo ran >> notes.txt; setsid {sleep} & ({sleep} &) ; {sleep}"
    replies = {
        "talk": [text("one two three and all the rest", chunks=5)],
        "command": [calls(ToolUse("bash", {"command": command}, "b1")), text("I see")],
        "ask": [calls(WRITE), text("written")],
        "pause": [calls(ToolUse("list_dir", {"path": "."}, "l1")), text("looked")],
    }
    made: Counter[tuple[str, int]] = Counter()

    def reply(request: SeenRequest) -> Reply:
        task = next(str(message["content"]) for message in request.messages if message["role"] == "user")
        made[task, request.turn] += 1
        return hang(3) if made["talk", 0] == 1 and task == "talk" else replies[task][request.turn]

    loom, _, workers = await killable(reply)
    worker = await workers.start()
    runs = {
        "talk": await loom.start("talk"),
        "command": await loom.start("command", permissions={"bash": "allow"}),
        "ask": await loom.start("ask"),
        "pause": await loom.start("pause", permissions={"list_dir": "ask"}),
    }
    watching = asyncio.create_task(_all(loom.client.watch(runs["talk"])))
    await _speaking(loom, runs["talk"])
    await _running(sleep, 3)
    asked = await loom.asked(runs["ask"])
    await loom.asked(runs["pause"])
    await loom.client.pause(runs["pause"], by="ann")
    await loom.client.approve(runs["pause"])

    await workers.kill(worker)
    await _running(sleep, 0)
    seen = await loom.client.status(runs["ask"])
    assert (seen["status"], seen["waiting_on"], seen["stale"]) == ("waiting_for_approval", "approval", True)
    await workers.start()

    paused = await loom.until(runs["pause"], lambda status: "stale" not in status)
    assert (paused["status"], paused["waiting_on"], paused["pending_approvals"]) == ("paused", "resume", [])
    assert made["pause", 1] == 0
    await loom.client.resume(runs["pause"])
    assert await loom.asked(runs["ask"]) == asked
    await loom.client.approve(runs["ask"], "w1", digest=asked["pending_approvals"][0]["digest"])

    results = {task: await loom.client.result(run_id) for task, run_id in runs.items()}
    assert {task: (result.status, result.output, result.tool_calls) for task, result in results.items()} == {
        "talk": (RunStatus.COMPLETED, "one two three and all the rest", 0),
        "command": (RunStatus.COMPLETED, "I see", 1),
        "ask": (RunStatus.COMPLETED, "written", 1),
        "pause": (RunStatus.COMPLETED, "looked", 1),
    }
    # Only the call that died was made again.
    assert made == {("talk", 0): 2} | {(task, turn): 1 for task in ("command", "ask", "pause") for turn in (0, 1)}
    assert (workspace / "notes.txt").read_text() == "ran\n"
    assert (workspace / "out.txt").read_text() == "hello"
    events = await watching
    assert_whole(events)
    assert (texts(events), count(events, Action.SEGMENT_RESET)) == ({1: results["talk"].output}, 1)


@pytest.mark.slow
async def test_a_run_survives_the_death_of_its_worker_in_a_streaming_model_call(killable: Killable) -> None:
    loom, model, workers = await killable(script([hang(3), text("one two three and all the rest", chunks=5)]))
    worker = await workers.start()
    run_id = await loom.start()
    watching = asyncio.create_task(_all(loom.client.watch(run_id)))
    await _speaking(loom, run_id)

    await workers.kill(worker)
    await workers.start()
    result = await loom.client.result(run_id)

    events = await watching
    assert events == await told(loom.client, run_id)
    assert_whole(events)
    assert (result.status, result.output, result.turns) == (RunStatus.COMPLETED, "one two three and all the rest", 1)
    assert texts(events) == {1: result.output}
    assert count(events, Action.SEGMENT_RESET) == 1
    assert len(model.requests) == 2


@pytest.mark.slow
async def test_three_deaths_in_one_model_call_neither_fail_the_run_nor_repeat_its_finished_steps(
    killable: Killable, workspace: Path
) -> None:
    note = calls(ToolUse("bash", {"command": "echo ran >> notes.txt"}, "b1"))
    loom, model, workers = await killable(script([note, hang(), hang(), hang(), text("at last")]))
    worker = await workers.start()
    run_id = await loom.start(permissions={"bash": "allow"})

    for death in range(3):
        await _asked_the_model(model, 2 + death)
        await workers.kill(worker)
        worker = await workers.start()
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.turns, result.tool_calls) == (RunStatus.COMPLETED, "at last", 2, 1)
    assert (workspace / "notes.txt").read_text() == "ran\n"
    assert [request.turn for request in model.requests] == [0, 1, 1, 1, 1]
    assert all(request.messages == model.requests[1].messages for request in model.requests[2:])


async def test_a_worker_that_dies_during_a_quick_read_does_not_cost_another_model_call(killable: Killable) -> None:
    loom, model, workers = await killable(
        script([calls(ToolUse("kill", {}, "k1"), ToolUse("list_dir", {"path": "."}, "l1")), text("seen")])
    )
    app = f"{Path(__file__).parents[1] / 'quick_app.py'}:app"
    worker = await workers.start(LOOM_APP=app)
    run_id = await loom.start()
    await asyncio.to_thread(worker.wait)

    await workers.start(LOOM_APP=app)
    result = await loom.client.result(run_id)

    assert (result.output, result.tool_calls, len(model.requests)) == ("seen", 2, 2)
    (history,) = await loom.histories(run_id)
    names = [event.activity_task_scheduled_event_attributes.activity_id for event in history.events]
    assert [name for name in names if name] == ["prepare", "t1-model", "t1-model-2", "t1-k1-2", "t1-l1-2", "t2-model"]
    events = await told(loom.client, run_id)
    assert_whole(events)
    assert [event.task.parameters["attempt"] for event in events if event.task.action is Action.TOOL_RESULT] == [2, 2]


@pytest.mark.slow
async def test_reading_and_idempotent_tools_run_again_under_the_same_key(killable: Killable, workspace: Path) -> None:
    script_ = script([calls(ToolUse("look", {}, "c1"), text="I look."), calls(ToolUse("store", {}, "c2")), text("ok")])
    loom, model, workers = await killable(script_)
    worker = await workers.start(PATIENT)
    run_id = await loom.start(permissions={"look": "allow", "store": "allow"})

    for tries, name in ((1, "look"), (3, "store")):
        await _written(workspace / "keys.txt", lines=tries)
        await workers.kill(worker)
        worker = await workers.start(PATIENT)
        await _written(workspace / "keys.txt", lines=tries + 1)
        (workspace / name).write_text(f"{name}: done")
    result = await loom.client.result(run_id)

    assert (result.output, result.tool_calls, len(model.requests)) == ("ok", 2, 3)
    assert [m["content"] for m in model.requests[2].messages if m["role"] == "tool"] == ["look: done", "store: done"]
    first, again, other, once_more = (workspace / "keys.txt").read_text().splitlines()
    assert (first, other) == (again, once_more)
    assert first.split()[1] != other.split()[1]
    # A tool's retry leaves the text alone that came with the call.
    assert texts(await told(loom.client, run_id)) == {1: "I look.", 3: "ok"}


@pytest.mark.slow
async def test_a_shell_command_dies_with_its_worker_and_is_not_run_twice(killable: Killable, workspace: Path) -> None:
    sleep = f"sleep 6{os.getpid()}.5"
    command = f"echo ran >> notes.txt; setsid {sleep} & ({sleep} &) ; {sleep}"
    loom, model, workers = await killable(script([calls(ToolUse("bash", {"command": command}, "b1")), text("I see")]))
    worker = await workers.start()
    run_id = await loom.start(permissions={"bash": "allow"})
    await _running(sleep, 3)

    await workers.kill(worker)
    await _running(sleep, 0)
    await workers.start()
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.tool_calls) == (RunStatus.COMPLETED, "I see", 1)
    assert "outcome is unknown" in model.requests[1].messages[-1]["content"]
    assert (workspace / "notes.txt").read_text() == "ran\n"
    assert len(model.requests) == 2


@pytest.mark.slow
async def test_a_question_outlives_the_worker_that_asked_it(killable: Killable, workspace: Path) -> None:
    loom, model, workers = await killable(script([calls(WRITE), text("written")]))
    worker = await workers.start()
    run_id = await loom.start()
    asked = await loom.asked(run_id)

    await workers.kill(worker)
    seen = await loom.client.status(run_id)
    assert (seen["status"], seen["waiting_on"], seen["stale"]) == ("waiting_for_approval", "approval", True)

    await workers.start()
    assert await loom.asked(run_id) == asked
    await loom.client.approve(run_id, "w1", digest=asked["pending_approvals"][0]["digest"])
    assert (await loom.client.result(run_id)).output == "written"
    assert (workspace / "out.txt").read_text() == "hello"
    assert len(model.requests) == 2


@pytest.mark.slow
async def test_what_people_say_while_there_is_no_worker_is_heard_by_the_next(killable: Killable) -> None:
    loom, model, workers = await killable(script([calls(WRITE), text("written")]))
    worker = await workers.start()
    run_id = await loom.start()
    await loom.asked(run_id)
    await workers.kill(worker)

    receipt = await loom.client.approve(run_id, "w1")
    await loom.client.send(run_id, "be quick")

    assert receipt == {"accepted": True, "run_id": run_id, "queued": True}
    await workers.start()
    assert (await loom.client.result(run_id)).output == "written"
    assert model.requests[1].messages[-1]["content"] == "be quick"
    events = await told(loom.client, run_id)
    assert_whole(events)
    assert count(events, Action.APPROVAL_DECIDED) == 1


@pytest.mark.slow
async def test_a_worker_that_is_told_to_stop_hands_its_work_on(killable: Killable, workspace: Path) -> None:
    note = calls(ToolUse("bash", {"command": "echo ran >> notes.txt"}, "b1"))
    loom, model, workers = await killable(script([note, hang(), text("handed on")]))
    worker = await workers.start()
    run_id = await loom.start(permissions={"bash": "allow"})
    await _asked_the_model(model, 2)

    worker.terminate()
    assert await asyncio.to_thread(worker.wait, PATIENCE) == 0
    await workers.start()
    result = await loom.client.result(run_id)

    assert (result.status, result.output, result.tool_calls) == (RunStatus.COMPLETED, "handed on", 1)
    assert (workspace / "notes.txt").read_text() == "ran\n"
    assert len(model.requests) == 3
    events = await told(loom.client, run_id)
    assert_whole(events)
    assert texts(events)[2] == "handed on"


@pytest.mark.slow
async def test_a_paused_run_stays_paused(killable: Killable) -> None:
    loom, model, workers = await killable(script([calls(WRITE), text("written")]))
    worker = await workers.start()
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.pause(run_id, by="ann")
    await loom.client.approve(run_id)

    await workers.kill(worker)
    await workers.start()
    status = await loom.until(run_id, lambda status: "stale" not in status)
    assert (status["status"], status["waiting_on"], status["pending_approvals"]) == ("paused", "resume", [])
    assert len(model.requests) == 1

    await loom.client.resume(run_id)
    result = await loom.client.result(run_id)
    assert (result.output, result.tool_calls, len(model.requests)) == ("written", 1, 2)


@pytest.mark.slow
async def test_a_run_that_dies_with_its_last_word_says_it_once(killable: Killable) -> None:
    loom, model, workers = await killable(script([text("the end")]))
    worker = await workers.start((*PATIENT, "--die-after-the-end"))
    run_id = await loom.start()
    await asyncio.to_thread(worker.wait)
    seen = await loom.client.status(run_id)
    assert (seen["status"], seen["waiting_on"], seen["stale"]) == ("running", "a worker", True)

    await workers.start()
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "the end")
    events = await told(loom.client, run_id)
    assert_whole(events)
    assert events[-1].task.result is not None
    assert events[-1].task.result["output"] == "the end"
    assert len(model.requests) == 1


@pytest.mark.slow
async def test_an_ended_run_needs_no_worker_to_tell_its_status(killable: Killable) -> None:
    loom, _, workers = await killable(script([text("Four.")]))
    worker = await workers.start()
    run_id = await loom.start()
    await loom.client.result(run_id)
    await workers.kill(worker)

    status = await loom.client.status(run_id)

    assert (status["status"], status["turn"], status["model"]) == ("completed", 1, "openai:scripted")
    assert "stale" not in status
    assert [event.task.action for event in await _all(loom.client.watch(run_id))][-1] is Action.COMPLETE


@pytest.mark.slow
async def test_a_standby_worker_takes_over_a_waiting_run(killable: Killable) -> None:
    loom, _, workers = await killable(script([calls(WRITE), text("written")]))
    run_id, owner, standby = await _with_standby(loom, workers)
    await loom.asked(run_id)

    await workers.kill(owner)
    await loom.client.temporal.get_workflow_handle(run_id).signal("approve", {"call_id": "w1"})
    result = await loom.client.result(run_id)

    assert result.output == "written"
    history = (await loom.histories(run_id))[0].events
    asked = _first(history, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
    taken = next(e for e in history[asked.event_id :] if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
    assert _pid(taken) == standby.pid
    print(f"taken over after {_at(taken) - _at(asked)}")


@pytest.mark.slow
@pytest.mark.parametrize("standby", [True, False], ids=["by a standby", "by a new worker"])
async def test_a_lost_activity_is_noticed_and_taken_over(killable: Killable, standby: bool) -> None:
    loom, model, workers = await killable(script([hang(), text("again")]))
    owner = await workers.start()
    run_id = await loom.start()
    await _asked_the_model(model, 1)
    if standby:
        await workers.start()

    killed = datetime.now(UTC)
    await workers.kill(owner)
    if not standby:
        await workers.start()
    result = await loom.client.result(run_id)

    assert result.output == "again"
    history = (await loom.histories(run_id))[0].events
    noticed = _first(history, EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT)
    again = _first(history[noticed.event_id :], EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED)
    figures = [(_at(event) - killed).total_seconds() for event in (noticed, again)]
    print(f"noticed after {figures[0]:.1f} s, taken over after {figures[1]:.1f} s")
    # By its heartbeat: a call that may take as long as it likes has no other limit.
    assert noticed.activity_task_timed_out_event_attributes.failure.timeout_failure_info.timeout_type == HEARTBEAT


@pytest.mark.slow
async def test_a_command_ends_with_its_run_if_the_run_is_terminated(killable: Killable, workspace: Path) -> None:
    loom, _, workers = await killable(script([calls(ToolUse("bash", {"command": "sleep 3602"}, "b1"))]))
    await workers.start()
    run_id = await loom.start(permissions={"bash": "allow"})
    await _running("sleep 3602", 1)
    await loom.client.temporal.get_workflow_handle(run_id).terminate()

    assert await _running("sleep 3602", 0)


@pytest.mark.slow
async def test_a_command_of_a_frozen_worker_takes_no_effect_once_its_run_is_aborted(
    killable: Killable, workspace: Path
) -> None:
    late = calls(ToolUse("bash", {"command": "sleep 3601 & echo begun > begun; sleep 60; touch late; wait"}, "b1"))
    loom, _, workers = await killable(script([late, text("done")]))
    owner = await workers.start()
    run_id = await loom.start(permissions={"bash": "allow"})
    await _written(workspace / "begun", lines=1)
    await workers.start()
    owner.send_signal(signal.SIGSTOP)
    try:
        aborting = asyncio.create_task(loom.client.abort(run_id, reason="it hangs"))
        assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
        await aborting

        await _running("sleep 3601", 0)
        assert not (workspace / "late").exists()
    finally:
        owner.send_signal(signal.SIGCONT)


@pytest.mark.slow
async def test_calls_of_a_worker_that_is_only_busy_go_on(killable: Killable, workspace: Path) -> None:
    slow = calls(ToolUse("bash", {"command": "sleep 6; echo done > done"}, "b1"))
    loom, model, workers = await killable(script([slow, text("fine", chunks=60, delay=0.1)]))
    await workers.start()
    run_id = await loom.start(permissions={"bash": "allow"})
    with busy(8):
        result = await loom.client.result(run_id)
    assert (result.status, result.tool_calls) == (RunStatus.COMPLETED, 1)
    assert (workspace / "done").read_text() == "done\n"
    history = (await loom.histories(run_id))[0].events
    lost = sum(event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT for event in history)
    print(f"{lost} attempts given up")  # on a machine without other load: none
    assert len(model.requests) == 2


@contextmanager
def busy(load: int) -> Iterator[None]:
    """Processes that take all the processor time that they get."""
    hungry = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for process in hungry:
            process.kill()
            process.wait()


async def _with_standby(loom: Harness, workers: Workers) -> tuple[str, Process, Process]:
    """A run, the worker that has it, and another one."""
    owner = await workers.start()
    run_id = await loom.start()
    await loom.until(run_id, lambda status: status["turn"] == 1)
    return run_id, owner, await workers.start()


async def _all(events: AsyncIterator[Any]) -> list[Streamed]:
    return [event async for event in events]


async def _speaking(loom: Harness, run_id: str) -> None:
    async def look() -> bool | None:
        return count(await told(loom.client, run_id), Action.THINKING) >= 3 or None

    await eventually(look)


async def _asked_the_model(model: ModelServer, times: int) -> None:
    async def look() -> bool | None:
        return len(model.requests) >= times or None

    await eventually(look)


async def _written(path: Path, *, lines: int) -> None:
    async def look() -> bool | None:
        return (path.exists() and len(path.read_text().splitlines()) == lines) or None

    await eventually(look)


async def _running(command: str, number: int) -> bool:
    """Wait until exactly this number of processes runs the command."""

    async def look() -> bool | None:
        return sum(" ".join(command_of(process)) == command for process in psutil.process_iter()) == number or None

    return await eventually(look)


def _first(history: Sequence[HistoryEvent], kind: "EventType.ValueType") -> HistoryEvent:
    return next(event for event in history if event.event_type == kind)


def _pid(event: HistoryEvent) -> int:
    return int(event.workflow_task_started_event_attributes.identity.partition("@")[0])


def _at(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(tzinfo=UTC)
