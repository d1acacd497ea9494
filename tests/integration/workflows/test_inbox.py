"""The inbox of all kinds of runs, and the abort of all of them."""

import json
from typing import Any, Final
from uuid import uuid4

import pytest

from loom import running_runs
from loom.chat_session import ChatSession
from loom.cli.abort_all import aborted
from loom.domain.core.requests import RunStatus
from loom.inbox import PendingAnswer, PendingCall, Waiting
from loom.running_runs import RunFilter, RunningRuns
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_crews import team, you
from tests.integration.workflows.test_run_reports import loom_command
from tests.trees import by_task, delegate

BASH: Final = ToolUse("bash", {"command": "echo hello > out.txt"}, "b1")
ASK_USER: Final = ToolUse("ask_user", {"question": "Which colour?"}, "q1")
STORIES: Final = {
    "a call": [calls(BASH)],
    "two calls": [calls(BASH, ToolUse("bash", {"command": "rm out.txt"}, "b2"))],
    "a question": [calls(ASK_USER)],
    "a root": [calls(delegate("part", "a part", "d1", tools=["ask_user"]))],
    "a part": [calls(ASK_USER)],
    you("member"): [calls(BASH)],
}


async def told_by_runs(loom: Harness, runs: list[str]) -> set[tuple[str, str]]:
    """What the runs and their sub-agents say themselves that they wait for."""
    found: set[tuple[str, str]] = set()
    for root in runs:
        status = await loom.client.status(root)
        found |= {(root, ask["call_id"]) for ask in status["pending_approvals"]}
        for run_id in (root, *await loom.below(root)):
            if (await loom.client.status(run_id))["question"]:
                found.add((run_id, "a question"))
    return found


def entry(waiting: Waiting) -> tuple[str, str]:
    assert isinstance(waiting, PendingCall | PendingAnswer)
    return (waiting.run_id, waiting.call_id if isinstance(waiting, PendingCall) else "a question")


async def test_the_inbox_lists_what_every_kind_of_run_says_that_it_waits_for(working: Working) -> None:
    loom, _ = await working(by_task(STORIES))
    tenant = f"tenant-{uuid4().hex[:6]}"
    given: dict[str, Any] = {"tenant": tenant, "user_id": "ann", "workspace": str(loom.workspace)}
    runs = [await loom.start(task, **given) for task in ("a call", "two calls", "a question", "a root")]
    root = runs[-1]
    runs.append(await loom.client.start_crew(team("sequential", "member"), "The task.", **given))
    chat = ChatSession(loom.client, f"chat-{tenant}", **given)
    await chat.send("a call")
    runs.append(chat.run_id)
    await loom.asked(runs[0])
    runs.append(await loom.client.fork(runs[0], turn=0))
    loom.started += runs[4:]

    async def all_wait() -> set[tuple[str, str]] | None:
        told = await told_by_runs(loom, runs)
        return told if len(told) == 8 else None

    told = await eventually(all_wait)
    await loom.client.pause(root)
    await loom.until(root, lambda status: [each["status"] for each in status["children"]] == ["paused"])

    async def listed() -> tuple[Waiting, ...] | None:
        found = await loom.client.pending(tenant=tenant)
        return found if len(found) == len(told) else None

    found = await eventually(listed)
    assert {entry(each) for each in found} == told
    assert [each.since for each in found] == sorted(each.since for each in found)
    shown = json.loads(await loom_command(loom, "inbox", "--tenant", tenant, "--json"))
    assert [(each["run_id"], each.get("call_id", "a question")) for each in shown] == [*map(entry, found)]


async def test_abort_all_ends_the_runs_that_it_means_and_their_sub_agents_and_no_others(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_runs, "PATIENCE", 1.0)
    loom, _ = await working(by_task(STORIES))
    tenant, other = f"tenant-{uuid4().hex[:6]}", f"tenant-{uuid4().hex[:6]}"
    tree = await loom.start("a root", tenant=tenant, user_id="ann", session_id=f"s-{tenant}")
    bobs = await loom.start("a call", tenant=tenant, user_id="bob")
    others = await loom.start("a call", tenant=other, user_id="ann")
    # No worker has seen this one, so Visibility doesn't know whose it is.
    request = {"task": "later", "tenant": tenant, "user_id": "ann", "agent": "default"}
    late = await loom.client.temporal.start_workflow("AgentRun", request, id=f"late-{tenant}", task_queue="nobody")
    for run_id in (bobs, others):
        await loom.asked(run_id)

    async def children() -> list[str] | None:
        return await loom.below(tree) or None

    (child,) = await eventually(children)
    await loom.until(child, lambda status: status["question"])

    meant = {
        RunFilter(tenant=tenant): {tree, bobs, late.id},
        RunFilter(tenant=tenant, user="ann"): {tree, late.id},
        RunFilter(tenant=tenant, agent="default", user="bob"): {bobs},
        RunFilter(session=f"s-{tenant}"): {tree},
        RunFilter(tenant=other): {others},
        RunFilter(tenant=tenant, agent="nobody"): set(),
    }
    runs = RunningRuns(loom.client.temporal)

    async def each_means() -> bool:
        found = {which: {run.summary.run_id for run in (await runs.meant_by(which)).runs} for which in meant}
        return found == meant

    await eventually(each_means)

    told = await loom_command(
        loom, "abort", "--all", "--tenant", tenant, "--user", "bob", "--reason", "enough", "--yes"
    )
    assert told == f"aborted {bobs} · default · a call\n"
    result = await loom.client.result(bobs)
    assert (result.status, result.error and "enough" in result.error.message) == (RunStatus.ABORTED, True)

    which = RunFilter(tenant=tenant)
    found = await runs.meant_by(which)
    meanwhile = await loom.start("a call", tenant=tenant)
    await loom.asked(meanwhile)
    left, since = await aborted(loom.client, which, found, "")
    assert [each.run_id for each in left] == [late.id]
    assert [each.summary.run_id for each in since.runs] == [meanwhile]
    for run_id in (tree, child):
        assert (await loom.client.status(run_id))["status"] == "aborted"
    await loom.asked(others)
    await late.terminate()
    for run_id in (meanwhile, others):
        await loom.client.abort(run_id)
