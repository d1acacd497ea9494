"""Stories of what is new in 0.4.0: chats, parked and reopened runs, leases, hooks, MCP servers that ask, and others."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pydantic import SecretStr
from temporalio.client import WorkflowHistory

from loom.chat_session import ChatSession
from loom.domain.core.errors import AccessDeniedError
from loom.domain.core.requests import AGENT_RUN
from loom.domain.core.run_files import RUN_FILES
from loom.domain.skills.catalog import LOAD_SKILL
from loom.domain.tools.mcp_servers import McpServer
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import Reply, Script, SeenRequest, ToolUse, calls, hang, script, status, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import mortal
from loom.workflows.options import CHAT_IDLE
from tests.git_server import repository
from tests.integration.activities.test_mcp import ECHO
from tests.integration.workflows.test_mcp_runs import working_with
from tests.integration.workflows.test_signed_requests import recorded, reset, stranger
from tests.skills import COUNT, write_skill
from tests.trees import by_task, delegate

READ = calls(ToolUse("read_file", {"path": "a.txt"}, "r1"))
WRITE = calls(ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1"))
SLEEP = calls(ToolUse("bash", {"command": "touch begun; sleep 60"}, "b1"))
AWAY = status(503, retry_after=0.1)
REJECTED = status(401)
HOOKED = {"app": "tests.replay.hooked_app:app"}
FAULTY = {"app": "tests.replay.faulty_app:app"}


async def plain(loom: Harness, **request: Any) -> str:
    """Whatever the script says."""
    return await loom.start(request.pop("task", "do it"), **request)


# Chats


def _chat(loom: Harness) -> ChatSession:
    chat = ChatSession(loom.client, f"corpus-{uuid4().hex[:8]}", workspace=str(loom.workspace))
    loom.started.append(chat.run_id)
    return chat


async def chat_rested(loom: Harness) -> str:
    """A chat that rests, in an execution of its own, and wakes with the next message."""
    chat = _chat(loom)
    await chat.ask("one", by="ann")
    handle = loom.client.temporal.get_workflow_handle(chat.run_id)
    before = (await handle.describe()).run_id

    async def rests() -> bool:
        return (await handle.describe()).run_id != before

    await asyncio.sleep(CHAT_IDLE.total_seconds())
    await eventually(rests)
    await chat.ask("two", by="bob")
    await loom.client.abort(chat.run_id, reason="enough", by="ann")
    return chat.run_id


async def chat_interrupted(loom: Harness) -> str:
    """Answers that are interrupted in the middle of a model call and while a call waits, one that fails, and one with a
    file.
    """
    chat = _chat(loom)
    slow = await chat.send("count to a million", by="ann")
    await loom.until(chat.run_id, lambda seen: seen["waiting_on"] == "model")
    later = await chat.send("later", by="ann")
    stop = await chat.send("stop", when_busy="interrupt", by="bob")
    for message in (slow, stop, later):
        await chat.answer(message)
    await chat.send("write it")
    await loom.asked(chat.run_id)
    await chat.ask("stop again", when_busy="interrupt")
    await chat.ask("break")
    await chat.ask("read this", parts=[{"data": b"a,b", "name": "sums.csv"}])
    await loom.client.abort(chat.run_id)
    return chat.run_id


async def chat_twice_sent(loom: Harness) -> str:
    """Messages that are sent again with the same id: while they are answered, while they wait, and afterwards."""
    chat = _chat(loom)
    first = await chat.send("write it", message_id="one")
    await loom.asked(chat.run_id)
    await chat.send("write it", message_id="one")
    queued = await chat.send("two", message_id="two")
    await chat.send("two", message_id="two")
    await chat.send("alone", message_id="three", when_busy="own_run")
    await loom.client.approve(chat.run_id, "w1", by="ann")
    for message in (first, queued):
        await chat.answer(message)
    for name in ("one", "two", "three"):
        await chat.send(name, message_id=name)
    asks = await chat.send("ask me", message_id="four")
    await loom.until(chat.run_id, lambda seen: seen["status"] == "waiting_for_input")
    replies = await chat.send("blue", message_id="five", by="ann")
    await chat.send("blue", message_id="five", by="ann")
    for message in (asks, replies):
        await chat.answer(message)
    await loom.client.abort(chat.run_id)
    return chat.run_id


def _chatting(request: SeenRequest) -> Reply:
    told = [message for message in request.messages if message["role"] in ("user", "tool")][-1]
    said = str(told["content"])
    if told["role"] == "tool":
        return text("as you say")
    if "write it" in said:
        return WRITE
    if "ask me" in said:
        return calls(ToolUse("ask_user", {"question": "Which colour?"}, "q1"))
    if "break" in said:
        return REJECTED
    return hang() if "count to a million" in said else text("as you say")


# Parked runs


async def retried_when(loom: Harness, waits_on: str, **changes: Any) -> str:
    """A person retries a run as soon as it waits for this."""
    run_id = await loom.start("do it")
    await loom.until(run_id, lambda seen: seen["waiting_on"] == waits_on)
    await loom.client.send(run_id, "in blue", by="ann")
    await loom.client.retry(run_id, by="ann", **changes)
    return run_id


async def told_while_parked(loom: Harness) -> str:
    """A message reaches a run that waits for its provider. Its next attempts contain it."""
    run_id = await loom.start("do it")
    await loom.until(run_id, lambda seen: seen["waiting_on"] == "provider")
    await loom.client.send(run_id, "in blue", by="ann")
    return run_id


async def parked_below(loom: Harness) -> str:
    """A sub-agent whose provider is away for its first call."""
    return await loom.start("the root")


PARKED_BELOW: Final = {
    "the root": [calls(delegate("look", "LOOK", "c1")), text("ok")],
}


def _away_below() -> Script:
    seen: list[SeenRequest] = []

    def reply(request: SeenRequest) -> Reply:
        if "LOOK" not in str(request.messages[1]):
            return by_task(PARKED_BELOW)(request)
        seen.append(request)
        return AWAY if len(seen) < 3 else text("seen")

    return reply


# Reopened runs


async def reopened_once(loom: Harness) -> str:
    """A run that is aborted during a command, and goes on without making it again."""
    run_id = await loom.start("do it", permissions={"bash": "allow"})
    await loom.until(run_id, lambda _: (loom.workspace / "begun").exists())
    await loom.client.abort(run_id, reason="enough", by="ann")
    await loom.client.result(run_id)
    await loom.client.retry(run_id, message="go on", by="ann")
    return run_id


async def reopened_children(loom: Harness) -> str:
    """A run that is aborted while a sub-agent works, and goes on without it."""
    run_id = await loom.start("the root", mode="bypass")
    await loom.until(run_id, lambda _: (loom.workspace / "begun").exists())
    await loom.client.abort(run_id)
    await loom.client.result(run_id)
    await loom.client.retry(run_id, by="ann")
    return run_id


async def reopened_limit(loom: Harness) -> str:
    """A run that has used its turns and summed up, and gets more."""
    run_id = await loom.start("look", max_turns=2)
    await loom.client.result(run_id)
    await loom.client.retry(run_id, max_turns=6, by="ann")
    return run_id


def _looks_again(request: SeenRequest) -> Reply:
    if not request.body.get("tools"):
        return text("so far")
    goes_on = "continue the task" in str(request.messages[-1])
    return text("all") if goes_on else calls(ToolUse("glob", {"pattern": "*"}, f"g{request.turn}"))


# What other events there are


async def hooked(loom: Harness) -> str:
    """A hook asks a person before the run, and another one changes its answer."""
    run_id = await loom.start("clean prod")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    changed = {"task": "clean staging"}
    await loom.client.approve(run_id, ask["call_id"], arguments=changed, digest=ask["digest"], by="ann")
    return run_id


async def unknown_agent(loom: Harness) -> str:
    """A run that is refused, because the worker doesn't know its agent."""
    return await loom.start_unseen("do it", agent="nobody")


async def attached(loom: Harness) -> str:
    """A message with a file while a call waits, and rules that change."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.send(run_id, "read this", parts=[{"data": b"a,b", "name": "sums.csv"}], by="ann")
    await loom.client.set_permissions(run_id, {"grep": "deny"}, by="ann")
    await loom.asked(run_id)
    await asyncio.sleep(1)
    await loom.client.approve(run_id)
    return run_id


async def granted(loom: Harness) -> str:
    """An approval for the run, and rules that change while another call waits."""
    run_id = await loom.start("do it")
    await loom.asked(run_id)
    await loom.client.approve(run_id, "w1", scope="run", by="ann")
    await loom.until(run_id, lambda seen: any(ask["call_id"] == "b1" for ask in seen["pending_approvals"]))
    await loom.client.set_permissions(run_id, {"bash": "allow"}, by="ann")
    return run_id


async def heard_late(loom: Harness) -> str:
    """A message that arrives while the model answers."""
    run_id = await loom.start("do it")
    await loom.until(run_id, lambda seen: seen["waiting_on"] == "model")
    await loom.client.send(run_id, "in blue", by="ann")
    return run_id


async def heard_early(loom: Harness) -> str:
    """A pause that reaches a run before its first task, and so before it is prepared."""
    run_id = f"test-{uuid4().hex[:8]}"
    await loom.client.temporal.start_workflow(
        AGENT_RUN,
        {"task": "do it", "workspace": str(loom.workspace)},
        id=run_id,
        task_queue=loom.settings.task_queue,
        start_signal="pause",
        start_signal_args=[{"by": "ann"}],
    )
    await loom.until(run_id, lambda seen: seen["status"] == "paused")
    await loom.client.resume(run_id)
    return run_id


async def one_by_one(loom: Harness) -> str:
    """Two calls that wait at once, each of which a person approves by itself."""
    run_id = await loom.start("do it")
    await loom.asked(run_id, calls=2)
    await loom.client.approve(run_id, "w1", by="ann")
    await loom.asked(run_id)
    await asyncio.sleep(1)
    await loom.client.approve(run_id, "w2", by="ann")
    return run_id


async def rules_above(loom: Harness) -> str:
    """Rules of a parent that change while a call of its sub-agent waits."""
    run_id = await loom.start("the root")
    await loom.asked(run_id)
    await loom.client.set_permissions(run_id, {"bash": "deny"}, by="ann")
    return run_id


async def answered(loom: Harness) -> str:
    """A question of the agent, a pause, and an answer."""
    run_id = await loom.start("do it")
    await loom.until(run_id, lambda seen: seen["status"] == "waiting_for_input")
    await loom.client.pause(run_id, by="ann")
    await loom.client.send(run_id, "blue", by="ann")
    await loom.client.resume(run_id, by="ann")
    return run_id


async def signed(loom: Harness) -> str:
    """A message that is signed, and the same message again, which somebody else has recorded."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.send(run_id, "in blue")
    client = await stranger(loom, await recorded(loom, run_id, "send_message"))
    await client.get_workflow_handle(run_id).signal("send_message", {"text": "in blue"})
    await loom.client.approve(run_id, "w1", by="ann")
    return run_id


async def signed_and_reset(loom: Harness) -> str:
    """A signed approval, and a reset to the task that it came with."""
    run_id = await loom.start("write it")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]
    signing = loom.client.temporal.get_workflow_handle(run_id)
    await signing.signal("approve", {"call_id": "w1", "digest": ask["digest"], "by": "ann"})
    await loom.client.result(run_id)
    await reset(await stranger(loom), run_id, task=4)
    await loom.asked(run_id)
    await loom.client.deny(run_id, "w1", by="ann")
    return run_id


def _uncompressed(request: SeenRequest) -> Reply:
    """Long results until the window is full, and no summary."""
    if "You keep the memory of an agent" in str(request.body["messages"][0]):
        return REJECTED
    return text("enough") if request.index > 6 else calls(ToolUse("bash", {"command": "seq 1 2500"}))


def _compressed_later() -> Script:
    """The same, but the provider is away when the summary is due for the first time."""
    failed: list[SeenRequest] = []

    def reply(request: SeenRequest) -> Reply:
        if "You keep the memory of an agent" in str(request.body["messages"][0]):
            failed.append(request)
            return AWAY if len(failed) < 3 else text("<key_decisions>alpha it is</key_decisions>")
        return text("enough") if request.index > 9 else calls(ToolUse("bash", {"command": "seq 1 2500"}))

    return reply


def _spending(request: SeenRequest) -> Reply:
    """A sub-agent that works for as long as it is given turns."""
    told = str(next(message["content"] for message in request.messages if message["role"] == "user"))
    if not request.body.get("tools"):
        return text("summed up")
    if "WORK" in told:
        return calls(ToolUse("glob", {"pattern": "*"}, f"g{request.turn}"))
    return text("ok") if request.turn else calls(delegate("work", "WORK", "c1"))


EVALUATED: Final = {"loom": {"evaluate": True}}
ASKS_BELOW: Final = {
    "the root": [calls(delegate("touch", "TOUCH", "c1", tools=["bash"])), text("ok")],
    "TOUCH": [calls(ToolUse("bash", {"command": "touch touched"}, "b1")), text("touched")],
}
SLEEPS_BELOW: Final = {
    "the root": [calls(delegate("wait", "WAIT", "c1", tools=["bash"])), text("ok")],
    "WAIT": [SLEEP],
}
COMPRESSED: Final = {"context_window": 12_000, "collapse_at": 1.0, "max_mode": "bypass"}
NOTIFIES: Final = {
    "notify_command": ("true",),
    "notify_escalate_url": SecretStr("http://127.0.0.1:9/"),
    "notify_escalate_after": 3.0,
}


async def announced(loom: Harness) -> str:
    """An ask that people are told of, and the end of the run."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    query = f"WorkflowType = 'Notify' AND TaskQueue = '{loom.settings.task_queue}'"

    async def is_announced() -> bool:
        return (await loom.client.temporal.count_workflows(query)).count > 0

    await eventually(is_announced)
    await loom.client.approve(run_id)
    return run_id


Story = tuple[Callable[[Harness], Awaitable[str]], Any, Mapping[str, Any]]

# Clones of repositories


async def cloned(loom: Harness) -> str:
    """A run in a clone, with a sub-agent, whose change is pushed to a branch."""
    repository(loom.workspace / "app.git", {"a.txt": "one\n"})
    workspace = {"git": f"file://{loom.workspace}/app.git", "push": "fix"}
    return await loom.start("the whole", workspace=workspace, permissions={"bash": "allow"})


async def cloned_aborted(loom: Harness) -> str:
    """A run in a clone that a person aborts, so that its change is stored and not pushed."""
    run_id = await cloned(loom)
    await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    await loom.client.abort(run_id, by="ann")
    return run_id


async def cloned_given_up(loom: Harness) -> str:
    """A run in a clone that waits for a repository that doesn't respond, until a person aborts the wait."""
    run_id = await cloned(loom)
    await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    head = loom.workspace / "app.git" / "HEAD"
    head.unlink()
    os.mkfifo(head)
    await loom.client.send(run_id, "go on", by="ann")
    await loom.until(run_id, lambda status: "to be pushed" in str(status["waiting_on"]))
    await loom.client.abort(run_id, by="ann", reason="enough")
    return run_id


CHANGE = calls(ToolUse("bash", {"command": "echo two >> a.txt"}, "b1"))
ASK = calls(ToolUse("ask_user", {"question": "go on?"}, "a1"))
IN_CLONE = {
    "the whole": [
        CHANGE,
        calls(delegate("a part", "the part", "d1")),
        text("done"),
    ],
    "the part": [READ, text("read")],
}
TEMPORARY = (f"file://{tempfile.gettempdir()}",)
CLONING: Final = {"repositories": TEMPORARY, "push_repositories": TEMPORARY}

LATER: Final[Mapping[str, Story]] = {
    "cloned": (cloned, by_task(IN_CLONE), CLONING),
    "cloned-aborted": (cloned_aborted, script([CHANGE, ASK]), CLONING),
    "cloned-given-up": (cloned_given_up, script([CHANGE, ASK, text("done")]), CLONING),
    "chat-rested": (chat_rested, _chatting, {}),
    "chat-interrupted": (chat_interrupted, _chatting, {"patience": 0}),
    "chat-twice-sent": (chat_twice_sent, _chatting, {}),
    "parked-until-back": (told_while_parked, script([READ, *[AWAY] * 3, text("done")]), {"model_attempts": 1}),
    "parked-in-vain": (plain, script([READ, AWAY], repeat_last=True), {"model_attempts": 1, "patience": 9.0}),
    "parked-on-operator": (
        partial(retried_when, waits_on="operator"),
        script([READ, REJECTED, REJECTED, text("done")]),
        {"patience": 4.0},
    ),
    "parked-retried": (
        partial(retried_when, waits_on="provider", model="anthropic:scripted"),
        script([READ, AWAY, text("done")]),
        {"model_attempts": 1},
    ),
    "parked-below": (parked_below, _away_below(), {"model_attempts": 1}),
    "reopened-once": (reopened_once, script([SLEEP, text("done")]), {}),
    "reopened-children": (reopened_children, by_task(SLEEPS_BELOW), {"max_mode": "bypass"}),
    "reopened-limit": (reopened_limit, _looks_again, {}),
    "hooked": (hooked, script([text("done")]), HOOKED),
    "hook-failed": (partial(plain, task="oops"), script([]), HOOKED),
    "node": (partial(plain, agent="shaky"), script([]), FAULTY),
    "tool-failed": (
        partial(plain, permissions={"flaky": "allow"}),
        script([calls(ToolUse("flaky", {}, "f1")), text("done")]),
        {"tool_attempts": 3, **FAULTY},
    ),
    "unknown-agent": (unknown_agent, script([]), {}),
    "attached": (attached, script([WRITE, text("done")]), {}),
    "asks-expired": (plain, script([WRITE, text("pity")]), {"approval_timeout": 0.5}),
    "answered": (answered, script([calls(ToolUse("ask_user", {"question": "Which?"}, "q1")), text("done")]), {}),
    "granted": (
        granted,
        script([WRITE, calls(ToolUse("bash", {"command": "true"}, "b1")), text("done")]),
        {},
    ),
    "heard-late": (heard_late, script([text("green", delay=2.0), text("blue")]), {}),
    "heard-early": (heard_early, script([READ, text("done")]), {}),
    "uncovered": (
        partial(plain, budget={"tokens": 9_000}),
        script([replace(READ, usage=(5_000, 300, 0)), text("so far")]),
        {},
    ),
    "one-by-one": (
        one_by_one,
        script([calls(*WRITE.calls, ToolUse("write_file", {"path": "b.txt", "content": "b"}, "w2")), text("done")]),
        {},
    ),
    "rules-above": (rules_above, by_task(ASKS_BELOW), {}),
    "signed": (signed, script([WRITE, text("done")]), {"require_signed": "on"}),
    "signed-and-reset": (signed_and_reset, script([WRITE, text("done"), text("pity")]), {"require_signed": "on"}),
    "lent": (partial(plain, task="the root", budget={"turns": 9}), _spending, {}),
    "evaluated": (
        partial(plain, metadata=EVALUATED, budget={"tokens": 200_000}),
        script([text("draft"), text('{"confidence": 0.9, "coverage": 1, "novelty": 0.1}')]),
        {},
    ),
    "evaluation-failed": (partial(plain, metadata=EVALUATED), script([text("draft"), REJECTED]), {}),
    "compression-failed": (partial(plain, mode="bypass"), _uncompressed, {"patience": 0, **COMPRESSED}),
    "compressed-later": (partial(plain, mode="bypass"), _compressed_later(), {"model_attempts": 1, **COMPRESSED}),
    "announced": (announced, script([WRITE, text("done")]), NOTIFIES),
}
"""The stories that the harness can tell."""


async def _worker_lost(addresses: Addresses) -> Sequence[WorkflowHistory]:
    """A worker that is killed during a call that runs once, and another one during a model call."""
    app = f"{Path(__file__).parent / 'faulty_app.py'}:app"
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        replies = script([calls(ToolUse("pay", {}, "p1")), hang(), text("done")])
        async with mortal(addresses, workspace, replies) as (loom, model, workers):
            worker = await workers.start(LOOM_APP=app)
            run_id = await loom.start(permissions={"pay": "allow"})
            await asyncio.to_thread(worker.wait)
            await workers.start(LOOM_APP=app)

            async def has_asked_again() -> bool:
                return len(model.requests) > 1

            await eventually(has_asked_again)
            await workers.crash()
            await workers.start(LOOM_APP=app)
            await loom.client.result(run_id)
            return await loom.histories(run_id)


async def _skilled(addresses: Addresses) -> Sequence[WorkflowHistory]:
    """An agent that loads a skill and runs its script."""
    with tempfile.TemporaryDirectory() as folder:
        workspace, home = Path(folder) / "workspace", Path(folder) / "skills"
        workspace.mkdir()
        write_skill(home / ".agents/skills", "count", scripts__count_dot_py=COUNT)
        load = calls(ToolUse(LOAD_SKILL, {"name": "count"}, "l1"))
        run = calls(ToolUse("skill__count__count", {"text": "one two"}, "s1"))
        replies = script([load, run, text("two")])
        async with harness(addresses, workspace, replies, skills_home=home) as (loom, _):
            run_id = await loom.start("count the words", permissions={"default": "allow"})
            await loom.client.result(run_id)
            return await loom.histories(run_id)


@asynccontextmanager
async def _with_echo(addresses: Addresses, answers: Script) -> AsyncIterator[Harness]:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        server = McpServer(name="echo", command=ECHO, sampling=True)
        async with working_with(addresses, workspace, answers, server) as (loom, _):
            yield loom


async def _booked(addresses: Addresses) -> Sequence[WorkflowHistory]:
    """An MCP server that asks a person during a call."""
    book = calls(ToolUse("mcp__echo__book", {"city": "Oslo"}, "m1"))
    async with _with_echo(addresses, script([book, text("Booked.")])) as loom:
        run_id = await loom.start(permissions={"default": "allow"})
        (ask,) = (await loom.asked(run_id))["pending_approvals"]
        await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"], arguments={"room": "quiet"}, by="ann")
        await loom.client.result(run_id)
        return await loom.histories(run_id)


async def _sampled(addresses: Addresses, *, works: bool) -> Sequence[WorkflowHistory]:
    """An MCP server that calls the run's model during a call."""

    def reply(request: SeenRequest) -> Reply:
        if any(message["content"] == "Sum up: a long story" for message in request.messages):
            return text("short") if works else REJECTED
        if any(message["role"] == "tool" for message in request.messages):
            return text("Summed up.")
        return calls(ToolUse("mcp__echo__summarize", {"text": "a long story"}, "m1"))

    async with _with_echo(addresses, reply) as loom:
        run_id = await loom.start(permissions={"default": "allow", "mcp_sampling(echo)": "allow"})
        await loom.client.result(run_id)
        return await loom.histories(run_id)


async def _files(addresses: Addresses) -> Sequence[WorkflowHistory]:
    """A file of a run that a person writes, and one that the run's rules keep from people."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        async with harness(addresses, workspace, script([text("done")])) as (loom, _):
            run_id = await loom.start("write it", permissions={"read_file(a.txt)": "deny"})
            await loom.client.result(run_id)
            await loom.client.files.write(run_id, "a.txt", b"alpha", by="ann")
            with suppress(AccessDeniedError):
                await loom.client.files.read(run_id, "a.txt", by="ann")
            query = f"WorkflowType = '{RUN_FILES}' AND TaskQueue = '{loom.settings.task_queue}'"

            async def requests() -> Sequence[str] | None:
                found = [each.id async for each in loom.client.temporal.list_workflows(query)]
                return found[::-1] if len(found) > 1 else None  # the newest is listed first

            ids = await eventually(requests)
            return [await loom.client.temporal.get_workflow_handle(each).fetch_history() for each in ids]


OTHERS: Final[Mapping[str, Callable[[Addresses], Awaitable[Sequence[WorkflowHistory]]]]] = {
    "worker-lost": _worker_lost,
    "skilled": _skilled,
    "files": _files,
    "booked": _booked,
    "sampled": partial(_sampled, works=True),
    "sampling-failed": partial(_sampled, works=False),
}
"""The stories that need other workers."""
