"""Record the corpus of a release: `python -m tests.replay.record 0.2.0` beside a running `loom up --no-worker`.

If names of stories follow the release (`lost,cancelled`), only these are recorded. Record for a new release, and only
stories of what is new in it: a recorded history is never recorded again, since it is what users have in flight.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import SecretStr
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import Worker

from loom._worker import worker
from loom.activities.adapters.temporal.deployments import TemporalDeployments
from loom.activities.adapters.temporal.run_history import executions
from loom.chat_session import ChatSession
from loom.composition.load_settings import load_settings
from loom.domain.core.requests import AGENT_RUN
from loom.domain.core.tenants import TenantLimits
from loom.run_move import state_at_end
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, empty, hang, script, status, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import mortal
from loom.workflows.memory_upkeep import MemoryUpkeep, upkeep_id
from loom.workflows.moved_run import MOVED_RUN
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER
from tests.integration.workflows.test_detached_children import rotated as rotated_meanwhile
from tests.integration.workflows.test_memory_upkeep import Steps, start
from tests.replay.later_stories import LATER, OTHERS
from tests.trees import by_task, delegate

FOLDER = Path(__file__).parent / "histories"
WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
READ = calls(ToolUse("read_file", {"path": "a.txt"}, "r1"), ToolUse("grep", {"pattern": "alpha"}, "r2"))


async def approved(loom: Harness) -> str:
    """An ask, a pause, a message, an edit, an approval for the run."""
    run_id = await loom.start("write it")
    ask = (await loom.asked(run_id))["pending_approvals"][0]
    await loom.client.pause(run_id, by="ann")
    await loom.client.send(run_id, "in blue", by="ann")
    await loom.client.resume(run_id)
    changed = {"path": "out.txt", "content": "changed"}
    await loom.client.approve(run_id, "w1", digest=ask["digest"], arguments=changed, scope="run", by="ann")
    return run_id


async def notified(loom: Harness) -> str:
    """An ask, of which a command is told at once and a URL only if it still waits, and the end of the run."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await eventually(lambda: _is_announced(loom))
    await loom.client.approve(run_id)
    return run_id


async def _is_announced(loom: Harness) -> bool:
    """Whether the worker has announced something."""
    query = f"WorkflowType = 'Notify' AND TaskQueue = '{loom.settings.task_queue}'"
    return (await loom.client.temporal.count_workflows(query)).count > 0


async def not_run(loom: Harness) -> str:
    """An ask that is denied, beside calls beyond the budget, of which the stream is told while the ask waits."""
    run_id = await loom.start("write it", budget={"tool_calls": 1})
    await loom.asked(run_id)
    await loom.client.deny(run_id, reason="no", by="ann")
    return run_id


async def denied(loom: Harness) -> str:
    """An ask that is denied, and a signal that nobody knows."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    handle = loom.client.temporal.get_workflow_handle(run_id)
    await handle.signal("no_such_signal", 7)
    await handle.signal("approve", ["malformed"])
    await handle.signal("deny", {"reason": "no"})
    return run_id


async def judged_again(loom: Harness) -> str:
    """Rules that change while a call waits."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.set_permissions(run_id, {"write_file": "allow"})
    return run_id


async def aborted(loom: Harness) -> str:
    """An abort while a call waits."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.abort(run_id, reason="enough", by="ann")
    return run_id


async def plain(loom: Harness) -> str:
    """Whatever the script says."""
    return await loom.start("do it")


async def lost(loom: Harness) -> str:
    """A worker that is lost during a tool call, which is then made again."""
    return await loom.start("do it", permissions={"stall": "allow"})


async def upgraded(loom: Harness) -> str:
    """A run that is told to continue on another version of its workers while a call waits."""
    deployments = TemporalDeployments(loom.client.temporal)
    await deployments.promote(WorkerDeploymentVersion("corpus", "1"))
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    async with worker(loom.settings.model_copy(update={"build": "2"})):
        await deployments.promote(WorkerDeploymentVersion("corpus", "2"))
        async for _ in deployments.drain(WorkerDeploymentVersion("corpus", "1")):
            pass
        await loom.client.approve(run_id, "w1")
        await loom.client.result(run_id)
    return run_id


async def aborted_in_tool(loom: Harness) -> str:
    """An abort that cancels a running command."""
    run_id = await _in_tool(loom)
    await loom.client.abort(run_id, reason="enough", by="ann")
    return run_id


async def read_aborted(loom: Harness) -> str:
    """An abort while a quick tool takes long."""
    run_id = await loom.start("do it")
    await loom.until(run_id, lambda _: (loom.workspace / "looked").exists())
    await loom.client.abort(run_id, reason="enough", by="ann")
    return run_id


async def cancelled(loom: Harness) -> str:
    """A cancellation through Temporal while a command is running."""
    run_id = await _in_tool(loom)
    await loom.client.temporal.get_workflow_handle(run_id).cancel()
    return run_id


async def _in_tool(loom: Harness) -> str:
    run_id = await loom.start("do it", permissions={"bash": "allow"})
    await loom.until(run_id, lambda _: (loom.workspace / "begun").exists())
    return run_id


async def child_terminated(loom: Harness) -> str:
    """A sub-agent that somebody terminates, while another one goes on."""
    run_id = await loom.start("the root", mode="bypass")
    await loom.until(run_id, lambda _: (loom.workspace / "begun").exists())
    child = (await loom.below(run_id))[0]
    await loom.client.temporal.get_workflow_handle(child).terminate("by hand")
    return run_id


async def child_stopped(loom: Harness) -> str:
    """An abort of one sub-agent, while its parent goes on."""
    run_id = await loom.start("the root", mode="bypass")
    await loom.until(run_id, lambda _: (loom.workspace / "begun").exists())
    await loom.client.abort((await loom.below(run_id))[0], reason="not needed", by="ann")
    return run_id


async def child_aborted(loom: Harness) -> str:
    """An abort that reaches a sub-agent in the middle of a command."""
    run_id = await loom.start("the root", mode="bypass")
    await loom.until(run_id, lambda _: (loom.workspace / "begun").exists())
    await loom.client.abort(run_id)
    return run_id


async def outlived(loom: Harness) -> str:
    """A run that continues as new twice while a sub-agent asks, and then hears of its end."""
    run_id = await loom.start("the root")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    await rotated_meanwhile(loom, run_id, times=2)
    await loom.client.approve(run_id, ask["call_id"])
    return run_id


async def orphaned(loom: Harness) -> str:
    """A sub-agent whose parent is terminated while it asks, and that then finds that out."""
    run_id = await loom.start("the root")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    await loom.client.temporal.get_workflow_handle(run_id).terminate("by hand")
    await loom.client.approve(ask["run_id"], "b1")
    return str(ask["run_id"])


async def reading_path(loom: Harness) -> str:
    """One tool call and an answer, by the model that needs no key: what `bench/reading_path.py` follows."""
    run_id = await loom.client.start("Look around.")
    loom.started.append(run_id)
    return run_id


async def refused(loom: Harness) -> str:
    """A request with an unknown field."""
    handle = await loom.client.temporal.start_workflow(
        "AgentRun", {"tsak": "x"}, id=f"refused-{id(loom)}", task_queue=loom.settings.task_queue
    )
    return handle.id


async def rotated(loom: Harness) -> str:
    """Continue-as-new in the middle."""
    return await loom.start("list often", max_turns=30)


def _often(request: object) -> Reply:
    turn = request.turn  # type: ignore[attr-defined]
    return text("enough") if turn >= 20 else calls(ToolUse("list_dir", {"path": "."}))


def _put_off(request: SeenRequest) -> Reply:
    """Long results until the window is full; a summary when asked for one."""
    if "You keep the memory of an agent" in str(request.body["messages"][0]):
        return text("<key_decisions>alpha it is</key_decisions>")
    return text("enough") if request.index > 8 else calls(ToolUse("bash", {"command": "seq 1 2500"}))


async def allowed(loom: Harness) -> str:
    """A run that may do everything."""
    return await loom.start("do it", mode="bypass")


async def delegated(loom: Harness) -> str:
    """Two sub-agents at once, an ask below that is answered at the root, a budget for all."""
    run_id = await loom.start("the root", budget={"tokens": 100_000}, permissions={"bash": "allow"})
    await loom.asked(run_id)
    # A pause that reaches the other one as it ends is in its history, but nobody is told of it.
    await loom.until(run_id, lambda status: "completed" in {child["status"] for child in status["children"]})
    await loom.client.pause(run_id)
    await loom.client.approve(run_id)
    await loom.client.resume(run_id)
    return run_id


async def limited(loom: Harness) -> str:
    """A run that uses up its turns and sums up."""
    return await loom.start("look", max_turns=2)


async def timed(loom: Harness) -> str:
    """A run whose time is over while a call waits for a person."""
    return await loom.start("write it", budget={"seconds": 4})


async def admitted(loom: Harness) -> str:
    """A run that waits until another run of its tenant ends."""
    first = await loom.start("write it", tenant="acme")
    await loom.asked(first)
    run_id = await loom.start("read it", tenant="acme", priority=1)
    await loom.until(run_id, lambda status: status["waiting_on"] == "other runs of tenant acme")
    await loom.client.abort(first)
    return run_id


def _until_the_end(request: SeenRequest) -> Reply:
    return calls(ToolUse("glob", {"pattern": "*"})) if request.body.get("tools") else text("so far")


PLAN = ToolUse(
    "create_plan", {"goal": "both", "steps": [{"id": "a", "task": "A"}, {"id": "b", "task": "B", "after": ["a"]}]}
)
DELEGATED = {
    "the root": [calls(delegate("run it", "RUN IT", "c1", tools=["bash"]), delegate("look", "LOOK", "c2")), text("ok")],
    "RUN IT": [calls(ToolUse("bash", {"command": "echo hello"}, "b1")), text("ran")],
    "LOOK": [calls(ToolUse("glob", {"pattern": "*"}, "g1")), text("seen")],
}
DOUBLE = {
    "name": "double",
    "description": "Doubles.",
    "parameters": {"type": "object"},
    "code": "def run(x): return 2 * x",
}
TOOLS = (
    calls(ToolUse("todo", {"items": [{"task": "double", "status": "pending"}]}), ToolUse("create_tool", DOUBLE)),
    calls(ToolUse("made__double", {"x": 2}), ToolUse("bash", {"command": "seq 1 9000"})),
    text("4"),
)


async def parked(loom: Harness) -> str:
    """A provider that is away, and then a key that is rejected, until a person chooses another model."""
    run_id = await loom.start("do it")
    await loom.until(run_id, lambda seen: seen["waiting_on"] == "operator")
    await loom.client.send(run_id, "in blue", by="ann")
    await loom.client.retry(run_id, model="anthropic:scripted", by="ann")
    return run_id


async def reopened(loom: Harness) -> str:
    """An abort while a call waits, and a key that is rejected. A person retries the run after each of these ends."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.abort(run_id, reason="enough", by="ann")
    await loom.client.result(run_id)
    await loom.client.retry(run_id, message="go on", by="ann")
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    await loom.client.result(run_id)
    await loom.client.retry(run_id, model="anthropic:scripted", by="ann")
    return run_id


async def moved(loom: Harness) -> str:
    """A run that arrives from another server, with the state that it had there while a call waited."""
    run_id, client = await loom.start("write it"), loom.client.temporal
    await loom.asked(run_id)
    state = await state_at_end(await anext(executions(client, run_id)), client)
    await loom.client.abort(run_id)  # there, it is terminated
    await loom.client.result(run_id)
    request = {"task": "write it"}
    handle = await client.start_workflow(
        MOVED_RUN, args=[request, state], id=run_id, task_queue=loom.settings.task_queue
    )

    async def has_arrived() -> bool:
        return (await handle.describe()).workflow_type == AGENT_RUN

    await eventually(has_arrived)
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    return run_id


async def structured(loom: Harness) -> str:
    """An answer that has to be repaired."""
    return await loom.start("do it", output_schema={"type": "object", "required": ["a"]})


async def reflected(loom: Harness) -> str:
    """A draft, a critique, a revision, and its evaluation."""
    return await loom.start("do it", metadata={"loom": {"pattern": "reflect", "rounds": 1, "evaluate": True}})


async def branched(loom: Harness) -> str:
    """Two levels of two branches, one of which fails."""
    return await loom.start("do it", metadata={"loom": {"pattern": "tree", "branches": 2, "rounds": 2}})


async def crew(loom: Harness) -> str:
    """A coordinator, a member that fails once, and an answer."""
    members = [{"name": "finder"}, {"name": "checker"}]
    made = {"name": "team", "mode": "coordinated", "members": members}
    run_id = await loom.client.start_crew(made, "the task", run_id=f"crew-{id(loom)}", workspace=str(loom.workspace))
    loom.started.append(run_id)
    return run_id


async def forked(loom: Harness) -> str:
    """A run that begins where another one was after its first turn."""
    origin = await loom.start("read it")
    await loom.client.result(origin)
    run_id = await loom.client.fork(origin, turn=1, message="Again.", model="anthropic:scripted")
    loom.started.append(run_id)
    return run_id


async def chatted(loom: Harness) -> str:
    """A chat over several executions: an ask, messages that queue and interrupt, a compression, and its end."""
    chat = ChatSession(loom.client, f"corpus-{uuid4().hex[:8]}", workspace=str(loom.workspace))
    loom.started.append(chat.run_id)
    await chat.ask("one", by="ann")
    sent = await chat.send("write it")
    await loom.asked(chat.run_id)
    queued = await chat.send("two")
    await loom.client.approve(chat.run_id, "w1", by="ann")
    for message in (sent, queued):
        await chat.answer(message)
    slow = await chat.send("count to a million")
    await loom.until(chat.run_id, lambda status: status["status"] == "running")
    stop = await chat.send("stop", when_busy="interrupt")
    for message in (slow, stop):
        await chat.answer(message)
    for number in range(12):
        await chat.ask(f"message {number} " + "and so on " * 200)
    await loom.client.abort(chat.run_id, reason="enough", by="ann")
    return chat.run_id


def _chatting(request: SeenRequest) -> Reply:
    told = [message for message in request.messages if message["role"] in ("user", "tool")][-1]
    if "You keep the memory of an agent" in str(request.body["messages"][0]):
        return text("<key_decisions>alpha it is</key_decisions>")
    if told["role"] == "user" and "write it" in str(told["content"]):
        return calls(WRITE)
    return hang() if "count to a million" in str(told["content"]) else text("as you say")


def _team(request: SeenRequest) -> Reply:
    told = str(request.messages)
    if "You coordinate" in told:
        work = '{"assignments": [{"member": "finder", "task": "find"}, {"member": "checker", "task": "check"}]}'
        return text('{"answer": "found"}' if "have brought" in told else work)
    if "You are 'checker'" in told and "attempt 1" not in told:
        return status(401)
    return text("here it is")


def _branches(request: SeenRequest) -> Reply:
    told = str(request.messages)
    if "Several agents have done the same task" in told:
        return text('{"answer_1": {"reason": "vague", "score": 0.2}, "answer_2": {"reason": "exact", "score": 0.7}}')
    return status(401) if "branch 1 of 2, level 2 of 2" in told else text("here it is")


NOT_GOOD = text('The date is missing. {"good": false}')
RATINGS = text('{"confidence": 0.9, "coverage": 1, "novelty": 0.1}')


SLEEP = calls(ToolUse("bash", {"command": "touch begun; sleep 60"}, "b1"))
SLEEPS_BELOW = {
    "the root": [calls(delegate("wait", "WAIT", "c1", tools=["bash"]), delegate("look", "LOOK", "c2")), text("ok")],
    "WAIT": [SLEEP],
    "LOOK": [text("seen")],
}
ASKS_BELOW = {
    "the root": [calls(delegate("touch", "TOUCH", "c1", tools=["bash"])), text("ok")],
    "TOUCH": [calls(ToolUse("bash", {"command": "touch touched"}, "b1")), text("touched")],
}
ONE_CHILD = {"part": [text("in")], "do it": [*[calls(delegate("the part", "part"))] * 2, text("out")]}
STALLS = [calls(ToolUse("stall", {"seconds": 8}, "s1")), text("done")]
QUICK = {"app": "tests.quick_app:app"}


def _looks(**arguments: Any) -> Reply:
    return calls(ToolUse("look", arguments, "l1"))


NOTIFIES = {
    "notify_command": ("true",),
    "notify_escalate_url": SecretStr("http://127.0.0.1:9/"),
    "notify_escalate_after": 3.0,
}

STORIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "parallel": (plain, script([READ, text("done")]), {}),
    "approved": (approved, script([calls(WRITE), calls(WRITE), text("done")]), {}),
    "denied": (denied, script([calls(WRITE), text("pity")]), {}),
    "notified": (notified, script([calls(WRITE), text("done")]), NOTIFIES),
    "not-run": (not_run, script([calls(WRITE, *READ.calls), text("pity")]), {}),
    "judged-again": (judged_again, script([calls(WRITE), text("done")]), {}),
    "aborted": (aborted, script([calls(WRITE)]), {}),
    "retried": (plain, script([status(429, retry_after=0.1), status(500), empty(), text("done")]), {}),
    "parked": (
        parked,
        script([READ, status(503, retry_after=0.1), status(503), status(401), text("done")]),
        {"model_attempts": 2},
    ),
    "reopened": (reopened, script([calls(WRITE), status(401), text("done")]), {"patience": 0}),
    "done-tool": (plain, script([calls(ToolUse("done", {"result": "ready"}))]), {}),
    "refused": (refused, script([text("never")]), {}),
    "tools": (allowed, script(TOOLS), {"dynamic_tools": "on", "max_mode": "bypass"}),
    "fallback": (
        plain,
        script([status(503, retry_after=0.1)] * 3 + [text("done")]),
        {"fallback_models": "anthropic:b"},
    ),
    "compressed": (allowed, _put_off, {"context_window": 12_000, "collapse_at": 1.0, "max_mode": "bypass"}),
    "structured": (structured, script([text("a?"), text('{"a": 1}')]), {}),
    "reflected": (reflected, script([text("draft"), NOT_GOOD, text("revised"), RATINGS]), {}),
    "looped": (plain, script([calls(ToolUse("list_dir", {"path": "."}))], repeat_last=True), {"loop_window": 5}),
    "delegated": (delegated, by_task(DELEGATED), {}),
    "timed": (timed, script([calls(WRITE)]), {}),
    "summed-up": (limited, _until_the_end, {}),
    "crew": (crew, _team, {}),
    "branched": (branched, _branches, {}),
    "planned": (
        plain,
        by_task({"Your part: A": [text("a")], "Your part: B": [status(401)], "": [calls(PLAN), text("ok")]}),
        {},
    ),
    "forked": (forked, script([READ, text("done"), text("done again")]), {}),
    "reading-path": (reading_path, script([]), {"model": "demo", "loop_window": 5}),
    "lost": (lost, script(STALLS), {"app": "tests.stalling_app:app"}),
    "read-quickly": (plain, script([READ, calls(*READ.calls[:1]), text("done")]), {}),
    "read-left": (plain, script([_looks(seconds=2.0), text("done")]), QUICK),
    "read-left-and-aborted": (read_aborted, script([_looks(seconds=60.0, always=True)]), QUICK),
    "aborted-in-tool": (aborted_in_tool, script([SLEEP]), {}),
    "cancelled": (cancelled, script([SLEEP]), {}),
    "child-terminated": (child_terminated, by_task(SLEEPS_BELOW), {"max_mode": "bypass"}),
    "child-refused": (plain, by_task(ONE_CHILD), {"max_children": 1}),
    "child-stopped": (child_stopped, by_task(SLEEPS_BELOW), {"max_mode": "bypass"}),
    "child-aborted": (child_aborted, by_task(SLEEPS_BELOW), {"max_mode": "bypass"}),
    "outlived": (outlived, by_task(ASKS_BELOW), {"rotate_after_events": 100}),
    "orphaned": (orphaned, by_task(ASKS_BELOW), {}),
    "moved": (moved, script([calls(WRITE), text("done")]), {}),
    "upgraded": (upgraded, script([calls(WRITE), text("done")]), {"deployment": "corpus", "build": "1"}),
    "admitted": (
        admitted,
        by_task({"write it": [calls(WRITE)], "read it": [READ, text("done")]}),
        {"tenants": {"acme": TenantLimits(runs=1)}},
    ),
    "rotated": (rotated, _often, {"rotate_after_events": 100}),
    "chatted": (
        chatted,
        _chatting,
        {"rotate_after_events": 100, "context_window": 12_000, "collapse_at": 1.0},
    ),
}


def _portable(history: str) -> str:
    """Without stack traces: they name folders of whoever recorded it, and no replay looks at them."""
    return re.sub(r'"stackTrace": "(?:[^"\\]|\\.)*"', '"stackTrace": ""', history)


async def _notifications(loom: Harness) -> list[str]:
    """The ids of the notifications of a worker's runs, once all have been delivered."""
    query = f"WorkflowType = 'Notify' AND TaskQueue = '{loom.settings.task_queue}'"
    found = [each async for each in loom.client.temporal.list_workflows(query)]
    for each in found:
        await loom.client.temporal.get_workflow_handle(each.id).result()
    return [each.id for each in found]


async def _upkeep(addresses: Addresses) -> Sequence[WorkflowHistory]:
    """Rounds of upkeep in which one step fails, continue-as-new, and a round that waits for the next one."""
    client = await Client.connect(addresses.temporal, data_converter=data_converter())
    queue, steps = f"upkeep-{uuid4().hex[:8]}", Steps()
    async with Worker(
        client,
        task_queue=queue,
        workflows=[MemoryUpkeep],
        activities=steps.all(),  # type: ignore[arg-type] # each is an activity
        workflow_runner=WORKFLOW_RUNNER,
    ):
        handle = await start(client, queue)
        for rounds in (2, 3, 4):

            async def ended(rounds: int = rounds) -> bool:
                return steps.rounds >= rounds

            await eventually(ended)
            await start(client, queue)
        await eventually(lambda: _waits(handle))
        first = client.get_workflow_handle(upkeep_id(queue), run_id=handle.first_execution_run_id)
        histories = [await first.fetch_history(), await handle.fetch_history()]
        await handle.terminate()
        return histories


async def _upkeep_of_a_backlog(addresses: Addresses) -> Sequence[WorkflowHistory]:
    """Rounds of upkeep of which the second one follows an end of runs, and the third one a full round."""
    client = await Client.connect(addresses.temporal, data_converter=data_converter())
    queue, steps = f"upkeep-{uuid4().hex[:8]}", Steps(full_round=2)
    async with Worker(
        client,
        task_queue=queue,
        workflows=[MemoryUpkeep],
        activities=steps.all(),  # type: ignore[arg-type] # each is an activity
        workflow_runner=WORKFLOW_RUNNER,
    ):
        handle = await start(client, queue)

        async def ended() -> bool:
            return steps.rounds == 3 and await _waits(handle)

        await eventually(ended)
        history = await handle.fetch_history()
        await handle.terminate()
        return [history]


async def _read_lost(addresses: Addresses) -> Sequence[WorkflowHistory]:
    """A worker that is killed during a quick read. Another worker then makes the call, but doesn't call the model."""
    app = f"{Path(__file__).parents[1] / 'quick_app.py'}:app"
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        replies = script([calls(ToolUse("kill", {}, "k1")), text("done")])
        async with mortal(addresses, workspace, replies) as (loom, _, workers):
            worker = await workers.start(LOOM_APP=app)
            run_id = await loom.start()
            await asyncio.to_thread(worker.wait)
            await workers.start(LOOM_APP=app)
            await loom.client.result(run_id)
            return await loom.histories(run_id)


async def _waits(handle: "WorkflowHandle[MemoryUpkeep, None]") -> bool:
    """Whether the upkeep has nothing to do until its next round."""
    return not (await handle.describe()).raw_description.pending_activities


def _keep(release: str, story: str, histories: Sequence[WorkflowHistory]) -> None:
    for number, history in enumerate(histories):
        FOLDER.joinpath(f"{release}-{story}-{number}.json").write_text(_portable(history.to_json()))


async def main(release: str, only: str = "") -> None:
    """Run every story, or only those that are named, and keep its histories, one file for each execution."""
    settings = load_settings()
    addresses = Addresses(
        temporal=settings.temporal_address,
        database=settings.database_url or "",
        redis=settings.redis_url or "",
        ui="",
    )
    others = {
        **OTHERS,
        "upkeep-by-one": _upkeep,
        "upkeep-backlog": _upkeep_of_a_backlog,
        "read-quickly-lost": _read_lost,
    }
    chosen = only.split(",") if only else [*STORIES, *LATER, *others]
    for name, tell in others.items():
        if name in chosen:
            _keep(release, name, await tell(addresses))
    for name, (story, replies, given) in {**STORIES, **LATER}.items():
        if name not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a.txt").write_text("alpha\nbeta\n")
            async with harness(addresses, Path(folder), replies, **given) as (loom, _):
                run_id = await story(loom)
                await loom.client.result(run_id)
                for place, each in enumerate([run_id, *await loom.below(run_id), *await _notifications(loom)]):
                    story_of = f"{name}-below{place}" if place else name
                    _keep(release, story_of, await loom.histories(each))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
