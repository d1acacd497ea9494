"""Reports, exports, artifacts, costs and the inbox of real runs, with the commands that print them."""

import asyncio
import codecs
import json
import os
import re
import sys
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import pytest
from rich.console import Console
from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import Worker

from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import RedisStream
from loom.cli.watch.watch_all import RunBoard
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, RunNotFoundError
from loom.domain.core.messages import JsonObject
from loom.domain.core.model_prices import ModelPrice
from loom.domain.core.tasks import Action, Origin, task_of
from loom.domain.history.costs import Costs
from loom.domain.history.run_report import RunReport
from loom.inbox import PendingAnswer, PendingCall, SilentRun
from loom.stack.ports import any_free
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import ToolUse, calls, script, status, text
from loom.testing.waiting import eventually
from loom.workflows.runner import WORKFLOW_RUNNER
from tests.forked_commands import forked
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate
from tests.unit.domain.test_media import png

AT_TERMINAL: Final = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
WRITE: Final = calls(ToolUse("write_file", {"path": "out.txt", "content": "hello\n"}, "w1"))
ASKS_BELOW: Final = {
    "the root job": [calls(delegate("write it", "write out.txt", "d1", tools=["bash"])), text("all done")],
    "write out.txt": [calls(ToolUse("bash", {"command": "echo hello > out.txt"}, "b1")), text("written")],
}


def environment(loom: Harness) -> dict[str, str]:
    """The environment of a command that talks to the test's servers."""
    return {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "120",
        "TEMPORAL_ADDRESS": loom.settings.temporal_address,
        "TEMPORAL_NAMESPACE": loom.settings.temporal_namespace,
        "LOOM_DATABASE_URL": str(loom.settings.database_url),
        "LOOM_REDIS_URL": str(loom.settings.redis_url),
        "LOOM_HOME": str(loom.settings.home),
    }


async def loom_command(loom: Harness, *words: str, code: int = 0) -> str:
    """What `loom` prints; standard error if it fails as expected."""
    return (await loom_bytes(loom, *words, code=code)).decode()


async def loom_bytes(loom: Harness, *words: str, code: int = 0, **given: str) -> bytes:
    """The same, undecoded."""
    ran = await asyncio.create_subprocess_exec(
        *forked(*words), env=environment(loom) | given, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await ran.communicate()
    assert ran.returncode == code, (out, err)
    return err if code else out


async def exported(client: LoomClient, run_id: str, **given: Any) -> list[JsonObject]:
    return [record async for record in client.export(run_id, **given)]


def events_in(records: list[JsonObject]) -> dict[str, JsonObject]:
    """The events of an export by their ids, without what docs/reports.md names as different."""

    def same(event: JsonObject) -> JsonObject:
        said = {name: value for name, value in event["parameters"].items() if name not in ("ms", "duration_ms")}
        return {**event, "created_at": None, "parameters": said}

    found = [same(record) for record in records if record["record"] == "event"]
    told: dict[str, JsonObject] = json.loads(json.dumps({event["task_id"]: event for event in found}, default=str))
    return told


async def test_a_run_with_children_and_asks_is_told_whole(working: Working) -> None:
    loom, _ = await working(by_task(ASKS_BELOW))
    run_id = await loom.start("do the root job")
    await loom.asked(run_id)

    async def pending() -> PendingCall | None:
        found = [each for each in await loom.client.pending() if each.run_id == run_id]
        return found[0] if found and isinstance(found[0], PendingCall) else None

    ask = await eventually(pending)
    assert (ask.tool, ask.made_by.startswith(f"{run_id}/"), ask.arguments) == (
        "bash",
        True,
        {"command": "echo hello > out.txt"},
    )
    assert await loom.client.pending(agent="nobody") == ()
    listed = json.loads(await loom_command(loom, "inbox", "--json"))
    (shown,) = [each for each in listed if each["run_id"] == run_id]
    assert (shown["call_id"], shown["stale"], shown["change"]) == (ask.call_id, False, None)
    assert "loom approve" in await loom_command(loom, "inbox")

    await loom.client.approve(run_id, ask.call_id, digest=ask.digest, by="ann")
    result = await loom.client.result(run_id)
    assert run_id not in {each.run_id for each in await loom.client.pending()}

    report = await loom.client.report(run_id)
    (child,) = report.sub_agents
    assert report.status == "completed"
    assert sum(report.time.values()) == pytest.approx(report.seconds)
    assert report.time["sub_agent"] > 0
    assert child.report is not None
    assert [(wait.kind, wait.count) for wait in child.report.waits if wait.kind == "approval"] == [("approval", 1)]
    assert report.total.input_tokens + report.total.output_tokens == result.usage["total_tokens"]
    assert report.total.model_calls == result.usage["model_calls"] == 4

    page = loom.workspace.parent / "report.html"
    await loom_command(loom, "report", run_id, "--html", str(page))
    assert run_id in page.read_text()
    assert not re.search(r"<script|<link|<img|https?://|url\(", page.read_text())
    assert "sub-agents" in await loom_command(loom, "report", run_id)
    assert json.loads(await loom_command(loom, "report", run_id, "--json"))["total"]["model_calls"] == 4

    from_stream, from_history = [await exported(loom.client, run_id, source=source) for source in ("stream", "history")]
    assert events_in(from_stream) == events_in(from_history) != {}
    runs = [(each["run_id"], each["events_from"]) for each in from_stream if each["record"] == "run"]
    assert runs == [(run_id, "stream"), (child.run_id, "stream")]
    (approval,) = [each for each in from_history if each["record"] == "approval"]
    assert (approval["by"], approval["approved"], approval["run_id"]) == ("ann", True, child.run_id)
    call = next(each for each in from_history if each["record"] == "tool_call" and each["tool"] == "bash")
    assert (call["arguments"], call["verdict"], call["result"]["status"]) == (dict(ask.arguments), "ask", "success")
    said = [(each["role"], each["content"]) for each in from_history if each["record"] == "message"]
    assert ("user", "do the root job") in said
    assert said.count(("assistant", "all done")) == 1
    lines = (await loom_command(loom, "export", run_id)).splitlines()
    assert [json.loads(line)["record"] for line in lines] == [each["record"] for each in from_stream]


STORIES: Final[dict[str, tuple[Any, dict[str, Any], str]]] = {
    "failed": (script([WRITE, status(401)]), {"patience": 0}, "failed"),
    "retried calls": (script([status(503, retry_after=0.1), WRITE, text("done")]), {}, "completed"),
    "continued as new": (
        script([*(calls(ToolUse("list_dir", {"path": "."}, f"l{n}")) for n in range(14)), WRITE, text("done")]),
        {"rotate_after_events": 100},
        "completed",
    ),
}


@pytest.mark.parametrize("name", STORIES)
async def test_every_kind_of_end_has_a_report_and_an_export(working: Working, name: str) -> None:
    replies, settings, ends = STORIES[name]
    loom, _ = await working(replies, **settings)
    result = await loom.run("write it", permissions={"write_file": "allow"})
    run_id = loom.started[0]

    report = await loom.client.report(run_id)
    assert (report.status, len(report.turns), result.status) == (ends, result.turns, ends)
    assert sum(report.time.values()) == pytest.approx(report.seconds)
    if name == "retried calls":
        assert report.spending.failed == 1
    records = await exported(loom.client, run_id)
    history = await exported(loom.client, run_id, source="history")
    assert events_in(records) == events_in(history)
    assert [each["status"] for each in records if each["record"] == "result"] == [ends]
    assert len([each for each in records if each["record"] == "tool_call"]) == result.tool_calls
    asked_again = [each for each in records if each["record"] == "message" and each["role"] == "user"]
    assert len(asked_again) == 1


async def test_a_run_that_was_refused_has_a_report_and_an_export(working: Working) -> None:
    loom, _ = await working(script([]))
    run_id = f"test-{uuid4().hex[:8]}"
    await loom.client.temporal.start_workflow(
        "AgentRun", {"task": "do it", "agent": "nobody"}, id=run_id, task_queue=loom.settings.task_queue
    )
    assert (await loom.client.result(run_id)).status == "failed"

    report = await loom.client.report(run_id)
    assert (report.status, report.turns, sum(report.time.values())) == ("failed", (), pytest.approx(report.seconds))
    records = await exported(loom.client, run_id)
    assert events_in(records) == events_in(await exported(loom.client, run_id, source="history"))
    assert [each["error"]["type"] for each in records if each["record"] == "result"] == ["BadRequest"]


async def test_a_run_that_was_retried_after_its_end_is_one_run(working: Working) -> None:
    loom, _ = await working(script([WRITE, status(401), text("done")]), patience=0)
    run_id = await loom.start("write it", permissions={"write_file": "allow"})
    assert (await loom.client.result(run_id)).status == "failed"
    await loom.client.retry(run_id, by="ann")
    assert (await loom.client.result(run_id)).status == "completed"

    report = await loom.client.report(run_id)
    assert (report.status, report.time["ended"] > 0) == ("completed", True)
    (again,) = [span for span in report.spans if span.kind == "ended"]
    assert again.by == "ann"
    for words in (("report", run_id, "--json"), ("advise", run_id, "--json")):
        without_redis = await loom_bytes(loom, *words, LOOM_REDIS_URL=f"redis://127.0.0.1:{any_free()}")
        assert json.loads(without_redis) == json.loads(await loom_command(loom, *words)), words
    records = await exported(loom.client, run_id)
    assert events_in(records) == events_in(await exported(loom.client, run_id, source="history"))


async def test_a_run_at_work_and_one_that_the_server_ended_have_a_report_and_an_export(working: Working) -> None:
    waiting = ToolUse("bash", {"command": "until [ -e ended ]; do sleep 0.1; done"}, "b1")
    loom, _ = await working(script([calls(waiting)]), max_mode="bypass")
    run_id = await loom.start("wait", permissions={"bash": "allow"})
    await loom.until_runs(run_id, "bash")

    async def at_work() -> RunReport | None:
        report = await loom.client.report(run_id)
        return report if report.time.get("tool", 0) > 0.3 else None

    report = await eventually(at_work)
    assert [(span.label, span.is_open) for span in report.spans if span.kind == "tool"] == [("bash", True)]
    assert sum(report.time.values()) == pytest.approx(report.seconds)
    from_stream, from_history = [await exported(loom.client, run_id, source=source) for source in ("stream", "history")]
    assert events_in(from_stream) == events_in(from_history)

    await loom.client.temporal.get_workflow_handle(run_id).terminate(reason="by hand")
    (loom.workspace / "ended").touch()  # the worker needs no time to stop
    ended = await loom.client.report(run_id)
    assert (ended.status, ended.error and ended.error["type"]) == ("failed", "TerminatedError")
    assert ended == await loom.client.report(run_id)  # its time doesn't run on
    (result,) = [each for each in await exported(loom.client, run_id) if each["record"] == "result"]
    assert (result["status"], result["error"]["message"]) == ("failed", "by hand")


async def test_artifacts_are_listed_read_and_exported(working: Working) -> None:
    (loom, _), lines = (
        await working(
            script([calls(ToolUse("bash", {"command": "seq 1 30000"}, "b1")), text("done")]), max_mode="bypass"
        ),
        "\n".join(map(str, range(1, 30_001))),
    )
    await loom.run("count", permissions={"bash": "allow"})
    run_id = loom.started[0]

    (artifact,) = await loom.client.artifacts(run_id)
    assert lines in await loom.client.artifact(run_id, artifact.id)
    (line,) = json.loads(await loom_command(loom, "artifact", "list", run_id, "--json"))
    assert (line["id"], line["bytes"]) == (artifact.id, artifact.bytes)
    file = loom.workspace.parent / "out.txt"
    await loom_command(loom, "artifact", "get", run_id, artifact.id, "--output", str(file))
    assert lines in file.read_text()
    missing = await loom_command(loom, "artifact", "get", run_id, "t9-no", code=2)
    assert f"loom artifact list {run_id}" in missing

    (without,) = [each for each in await exported(loom.client, run_id) if each["record"] == "artifact"]
    (stored,) = [each for each in await exported(loom.client, run_id, artifacts=True) if each["record"] == "artifact"]
    assert "content" not in without
    assert (without["id"], without["tool"]) == (stored["id"], stored["tool"]) == (artifact.id, "bash")
    assert lines in stored["content"]


async def test_images_of_a_run_and_its_sub_agents_are_listed_read_and_exported(working: Working) -> None:
    replies = {
        "the root job": [calls(delegate("look", "look at it", "d1")), text("all done")],
        "look at it": [calls(ToolUse("read_file", {"path": "seen.png"}, "r1")), text("seen")],
    }
    loom, _ = await working(by_task(replies))
    sent, seen = png(40, 20), png(60, 30)
    (loom.workspace / "seen.png").write_bytes(seen)
    image = {"type": "image", "media_type": "image/png", "data": b64encode(sent).decode(), "name": "sent.png"}
    await loom.run("do the root job", parts=[image])
    root = loom.started[0]
    (child,) = (await loom.client.report(root)).sub_agents

    for run_id, content, name in ((root, sent, "sent.png"), (child.run_id, seen, "seen.png")):
        (artifact,) = await loom.client.artifacts(run_id)
        assert (artifact.media_type, artifact.name, artifact.bytes) == ("image/png", name, len(content))
        assert await loom.client.artifact_bytes(run_id, artifact.id) == content
        with pytest.raises(BadRequest, match="no text"):
            await loom.client.artifact(run_id, artifact.id)
        line = await loom_command(loom, "artifact", "list", run_id)
        assert [word in line for word in (artifact.id, "image/png", name)] == [True] * 3
    with pytest.raises(BadRequest, match="no artifact"):
        await loom.client.artifact_bytes(root, artifact.id)  # another run's

    file = loom.workspace.parent / "out.png"
    get = ("artifact", "get", child.run_id, artifact.id)
    await loom_command(loom, *get, "-o", str(file))
    assert file.read_bytes() == seen
    assert await loom_bytes(loom, *get) == seen
    inside = [sys.executable, "-c", AT_TERMINAL, sys.executable, "-c", "from loom.cli.main import main; main()", *get]
    shown = await asyncio.create_subprocess_exec(*inside, env=environment(loom), stdout=asyncio.subprocess.PIPE)
    assert "--output" in (await shown.communicate())[0].decode()
    assert shown.returncode == 2

    records = await exported(loom.client, root, artifacts=True)
    contents = [each for each in records if each["record"] == "artifact"]
    assert {each["run_id"]: b64decode(each["content"]) for each in contents} == {root: sent, child.run_id: seen}


def group(found: Costs, name: str) -> tuple[float, int, int]:
    (chosen,) = [each for each in found.groups if each.name == name]
    return round(chosen.cost, 4), chosen.runs, chosen.sub_agents


async def test_costs_add_up_without_counting_children_twice(working: Working) -> None:
    tree = {
        "the root job": [calls(delegate("part", "do the part", "d1")), text("all done")],
        "the part": [text("done")],
    }
    loom, _ = await working(by_task(tree), prices={"openai:scripted": ModelPrice(input=3.0, output=15.0)})
    tenant, user = f"tenant-{uuid4().hex[:6]}", f"user-{uuid4().hex[:6]}"
    result = await loom.run("do the root job", tenant=tenant, user_id=user, session_id=f"s-{tenant}")
    assert result.cost
    since = datetime.now(UTC) - timedelta(minutes=10)

    async def counted() -> bool:
        return any(each.name == tenant for each in (await loom.client.costs("tenant", since=since)).groups)

    await eventually(counted)
    expected = (round(result.cost, 4), 2, 1)
    assert group(await loom.client.costs("tenant", since=since), tenant) == expected
    assert group(await loom.client.costs("user", since=since), user) == expected
    assert group(await loom.client.costs("session"), f"s-{tenant}") == expected
    assert await loom.client.costs("tenant", since=datetime.now(UTC) + timedelta(hours=1)) is not None
    printed = json.loads(await loom_command(loom, "costs", "--by", "model", "--since", "7d", "--json"))
    assert any(each["name"] == "openai:scripted" for each in printed["groups"])
    assert tenant in await loom_command(loom, "costs", "--by", "tenant")

    asked = ("run", "do the root job", "--tenant", tenant, "--estimate")
    estimate = json.loads(await loom_command(loom, *asked, "--json"))
    assert estimate["runs"] >= 1  # other tests' runs of the same agent count, too
    assert 0 <= estimate["cost"]["low"] <= estimate["cost"]["median"] <= estimate["cost"]["high"]
    assert "median" in await loom_command(loom, *asked)
    assert {run.run_id.partition("/")[0] for run in await loom.client.list(tenant=tenant)} == {*loom.started}


async def test_an_unknown_price_says_unknown(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    tenant = f"tenant-{uuid4().hex[:6]}"
    await loom.run("do it", tenant=tenant)

    async def told() -> Any:
        found = await loom.client.costs("tenant")
        return next((each for each in found.groups if each.name == tenant), None)

    found = await eventually(told)
    assert (found.cost, found.unknown, found.runs) == (0.0, 1, 1)
    assert re.search(rf"{tenant} +unknown", await loom_command(loom, "costs", "--by", "tenant"))


async def test_questions_and_silent_runs_are_in_the_inbox_of_their_tenant(
    addresses: Addresses, workspace: Path
) -> None:
    tenant = f"tenant-{uuid4().hex[:6]}"
    question = calls(ToolUse("ask_user", {"question": "Which colour?"}, "q1"))
    async with harness(addresses, workspace, script([question, question, text("x")]), replay=False) as (loom, _):
        first, second = [await loom.start("paint it", tenant=tenant) for _ in range(2)]
        for run_id in (first, second):
            await loom.until(run_id, lambda seen: seen["status"] == "waiting_for_input")

        async def both() -> Any:
            found = await loom.client.pending(tenant=tenant)
            # A busy worker may be late for one of the looks.
            return found if [type(each) for each in found] == [PendingAnswer] * 2 else None

        asked = await eventually(both)
        assert {each.run_id for each in asked} == {first, second}
        assert {each.question for each in asked} == {"Which colour?"}
        assert asked[0].since <= asked[1].since <= datetime.now(UTC)
        assert "Which colour?" in await loom_command(loom, "inbox", "--tenant", tenant)
        client = loom.client
        settings = loom.settings

    async with LoomClient.connected(settings) as client:
        began = monotonic()
        silent = await client.pending(tenant=tenant)
        assert monotonic() - began < 10
        assert {type(each) for each in silent} == {SilentRun}
        assert [(each.run_id, each.since) for each in silent] == [(each.run_id, each.since) for each in asked]
        for run_id in (first, second):
            await client.temporal.get_workflow_handle(run_id).terminate()


@workflow.defn(name="AgentRun")
class OddRun:
    """A run of some other release, whose status has no form that this one knows."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def status(self) -> JsonObject:
        return {"pending_approvals": [{"tool": "bash"}]}


async def shown_by_watch(loom: Harness, odd: str) -> set[str]:
    """The runs in `loom watch`, after the odd one has published an event that has no form that this release knows."""
    link = RedisConnection(str(loom.settings.redis_url))
    await RedisStream(link).publish([task_of(Origin(run_id=odd), Action.TOOL_CALL, "odd", at=datetime.now(UTC))])
    await link.aclose()
    out = Console(width=200, file=StringIO())
    board = RunBoard(loom.client, out)

    async def told() -> str | None:
        await board.refresh()
        with out.capture() as shown:
            out.print(board.render())
        return shown.get() if "its events can't be read" in shown.get() else None

    lines = (await eventually(told)).splitlines()
    await board.close()
    (unread,) = [line for line in lines if "its events can't be read" in line]
    assert odd in unread
    return {run_id for run_id in (*loom.started, odd) if any(run_id in line for line in lines)}


async def test_a_run_that_cannot_be_read_does_not_hide_the_others(working: Working) -> None:
    tenant, odd = f"tenant-{uuid4().hex[:6]}", f"test-odd-{uuid4().hex[:6]}"
    loom, _ = await working(script([calls(ToolUse("ask_user", {"question": "Which colour?"}, "q1"))]))
    waits = await loom.start("paint it", tenant=tenant)
    await loom.until(waits, lambda seen: seen["status"] == "waiting_for_input")
    known = TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword("LoomTenant"), tenant),
            SearchAttributePair(SearchAttributeKey.for_keyword("LoomWaitingOn"), "approval"),
        ]
    )
    client = loom.client.temporal
    async with Worker(client, task_queue=odd, workflows=[OddRun], workflow_runner=WORKFLOW_RUNNER):
        handle = await client.start_workflow(OddRun.run, id=odd, task_queue=odd, search_attributes=known)

        async def both() -> Any:
            found = {each.run_id: each for each in await loom.client.pending(tenant=tenant)}
            # A busy worker may be late for one of the looks.
            return found if isinstance(found.get(waits), PendingAnswer) and odd in found else None

        found = await eventually(both)
        assert isinstance(found[odd], SilentRun)
        assert found[odd].error == "KeyError: 'call_id'"
        assert "can't be read (KeyError: 'call_id')" in await loom_command(loom, "inbox", "--tenant", tenant)
        costs = await loom.client.costs("user")
        assert sum(each.runs for each in costs.groups) >= 2
        assert await shown_by_watch(loom, odd) >= {waits, odd}
        await handle.terminate()
    await loom.client.abort(waits)


class AtTerminal:
    """A command at a terminal, and what it has shown since the last `forget`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self.process, self._keys, self._screen = process, process.stdin, process.stdout
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    async def until(self, word: str) -> None:
        """Read until the command shows this."""
        while word not in self.shown:
            read = await asyncio.wait_for(self._screen.read(4096), 30)
            assert read, self.shown
            self.shown += self._decoder.decode(read)

    async def press(self, keys: str, *, once: str) -> None:
        """Press keys once a text is shown, and forget what was shown before."""
        await self.until(once)
        self.shown = ""
        self._keys.write(keys.encode())


async def test_the_inbox_is_answered_key_by_key(working: Working) -> None:
    loom, _ = await working(lambda seen: WRITE if seen.turn == 0 else text("done"))
    tenant = f"tenant-{uuid4().hex[:6]}"
    runs = [await loom.start("write it", tenant=tenant) for _ in range(3)]
    for run_id in runs:
        await loom.asked(run_id)

    async def all_listed() -> bool:
        return len(await loom.client.pending(tenant=tenant)) == 3

    await eventually(all_listed)
    listed = json.loads(await loom_command(loom, "inbox", "--tenant", tenant, "--json"))
    assert [each["change"].splitlines()[-1] for each in listed] == ["+hello"] * 3
    words = ["-c", AT_TERMINAL, sys.executable, "-c", "from loom.cli.main import main; main()", "inbox"]
    piped = asyncio.subprocess.PIPE
    inbox = AtTerminal(
        await asyncio.create_subprocess_exec(
            sys.executable, *words, "--tenant", tenant, env=environment(loom), stdin=piped, stdout=piped
        )
    )
    await inbox.until("+hello")
    await inbox.press("y", once="quit")
    await inbox.until("2 of 3")
    await inbox.press("n", once="quit")
    await inbox.press("not now\r", once="reason?")
    await inbox.until("3 of 3")
    await inbox.press("s", once="quit")
    await inbox.until("nothing else is waiting for you")
    assert await asyncio.wait_for(inbox.process.wait(), 30) == 0

    (skipped,) = {each.run_id for each in await loom.client.pending(tenant=tenant)}
    for run_id in {*runs} - {skipped}:
        assert (await loom.client.result(run_id)).status == "completed"
    assert (loom.workspace / "out.txt").read_text() == "hello\n"
    await loom.client.abort(skipped)


async def test_wrong_input_says_what_was_wrong(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    await loom.run("do it")
    run_id = loom.started[0]
    with pytest.raises(RunNotFoundError):
        await loom.client.report("no-such-run")
    with pytest.raises(BadRequest, match="is not one of stream, history"):
        await exported(loom.client, run_id, source="memory")
    wrong = {
        "no folder": ("report", run_id, "--html", "/no-such-folder/x.html"),
        "not both": ("report", run_id, "--html", "x.html", "--json"),
        "is not one of agent": ("costs", "--by", "colour"),
        "neither a span": ("costs", "--since", "yesterday"),
        "no run 'no-such-run'": ("export", "no-such-run"),
        "quote": ("inbox", "--tenant", "a'b"),
    }
    for said, words in wrong.items():
        assert said in await loom_command(loom, *words, code=2), words
