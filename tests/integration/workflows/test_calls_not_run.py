"""Calls that never run: people see each of them on the stream, on the screen and in the past, once, with its reason."""

import asyncio
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from loom import Deny, Instead, LoomApp, Task
from loom.activities.plan_calls import CallPreparer
from loom.cli.commands.show import read_turns, turn_lines, turn_view
from loom.cli.watch.screen import Screen
from loom.domain.core.tasks import Action
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, status, text
from loom.testing.stream import assert_whole, told
from loom.watching import Streamed
from tests.corpora.secrets.making import ALNUM, Maker
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_rebuilt_tasks import assert_made_again
from tests.trees import by_task, delegate

WRONG: Final = ToolUse("read_file", {"file": "a.txt"}, "wrong")
UNKNOWN: Final = ToolUse("read_fil", {"path": "a.txt"}, "unknown")
FORBIDDEN: Final = ToolUse("write_file", {"path": "b.txt", "content": "b"}, "forbidden")
LOOK: Final = ToolUse("list_dir", {"path": "."}, "look")
ASKED: Final = ToolUse("bash", {"command": "touch c.txt"}, "asked")
RULES: Final = {"write_file": "deny", "bash": "ask"}
BOTH: Final = [Action.TOOL_CALL, Action.TOOL_RESULT]


def of_call(events: list[Streamed], call_id: str) -> list[Task]:
    """The tasks about the beginning and the end of this call, in order."""
    return [e.task for e in events if e.task.action in BOTH and e.task.parameters["call_id"] == call_id]


def on_screen(events: list[Streamed], run_id: str, *, live: bool) -> str:
    """What a terminal or a pipe shows of these events."""
    out = io.StringIO()
    screen = Screen(Console(file=out, width=120, color_system=None), run_id, live=live)
    for event in events:
        screen.event(event.offset, event.task)
    return out.getvalue()


async def test_a_refused_call_is_told_shown_and_found_again_with_its_reason(working: Working) -> None:
    refused = {"wrong": (WRONG, "path"), "unknown": (UNKNOWN, "read_file"), "forbidden": (FORBIDDEN, "Not permitted")}
    answer = calls(WRONG, UNKNOWN, FORBIDDEN, LOOK)
    loom, _ = await working(script([status(500), answer, text("done")]), first_retry_delay=0.01)
    run_id = await loom.start(permissions=RULES)
    await loom.client.result(run_id)
    events = await told(loom.client, run_id)
    assert_whole(events)

    (first, _) = await loom.client.turns(run_id)
    past = "\n".join(turn_lines(first, {}))
    for call_id, (use, reason) in refused.items():
        called, returned = of_call(events, call_id)
        assert [called.action, returned.action] == BOTH
        assert (called.status, returned.status) == ("error", "error")
        assert called.parameters["arguments"] == use.arguments
        assert (called.parameters["turn"], called.parameters["attempt"]) == (1, 0)
        assert returned.result is not None
        assert reason in returned.result["content"]
        assert returned.result["metadata"]["error_type"]
        shown = returned.result["content"].split("\n")[0][:60]
        assert all(shown in on_screen(events, run_id, live=live) for live in (True, False))
        assert f"✗ {use.name}" in past
        assert shown in past
    assert [task.status for task in of_call(events, "look")] == ["running", "success"]


async def test_a_refused_call_shows_no_secret(working: Working) -> None:
    secret = "gh" + "p_" + Maker(3).of(ALNUM, 36)
    loom, _ = await working(script([calls(ToolUse("http_fetc", {"url": f"https://x/?t={secret}"}, "c")), text("done")]))
    run_id = await loom.start()
    await loom.client.result(run_id)

    events = await told(loom.client, run_id)

    assert len(of_call(events, "c")) == 2
    assert secret not in str(events)


async def test_a_call_that_a_person_denies_ends_with_the_persons_reason(working: Working) -> None:
    loom, _ = await working(script([calls(ASKED), text("done")]))
    run_id = await loom.start(permissions=RULES)
    await loom.asked(run_id)
    await loom.client.deny(run_id, "asked", reason="not today", by="ann")
    await loom.client.result(run_id)
    events = await told(loom.client, run_id)

    (ended,) = of_call(events, "asked")
    assert (ended.action, ended.status, ended.parameters["attempt"]) == (Action.TOOL_RESULT, "error", 0)
    assert ended.result is not None
    assert ended.result["content"].startswith("Denied by ann: not today")
    screen = on_screen(events, run_id, live=False)
    assert screen.count("not today") == 1
    (first, _) = await loom.client.turns(run_id)
    assert "✗ bash: touch c.txt: Denied by ann: not today" in "\n".join(turn_lines(first, {}))


async def test_a_call_that_cannot_be_told_costs_no_second_reply(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise ValueError("not told")

    monkeypatch.setattr(CallPreparer, "tell_not_run", fails)
    loom, model = await working(script([calls(UNKNOWN), text("done")]))
    assert (await loom.run()).output == "done"
    assert len(model.requests) == 2


class Gate:
    """Denies, or answers, some calls of `glob`."""

    def before(self, task: Task) -> Deny | Instead | None:
        """Decide by the pattern."""
        match task.parameters:
            case {"arguments": {"pattern": "*.no"}}:
                return Deny("not these")
            case {"arguments": {"pattern": "*.yes"}}:
                return Instead("none of these")
            case _:
                return None


def command(call_id: str, line: str = "true") -> ToolUse:
    """A call that asks."""
    return ToolUse("bash", {"command": line}, call_id)


def listing(call_id: str) -> ToolUse:
    """A call that runs."""
    return ToolUse("list_dir", {"path": "."}, call_id)


FATES: Final = {
    "ok": (listing("ok"), ""),
    "fails": (ToolUse("read_file", {"path": "none.txt"}, "fails"), "none.txt"),
    "wrong": (WRONG, "path"),
    "unknown": (UNKNOWN, "read_file"),
    "malformed": (ToolUse("read_file", '{"path": ', "malformed"), "JSON"),
    "forbidden": (FORBIDDEN, "Not permitted"),
    "stopped": (ToolUse("glob", {"pattern": "*.no"}, "stopped"), "not these"),
    "instead": (ToolUse("glob", {"pattern": "*.yes"}, "instead"), "none of these"),
    "approved": (command("approved"), ""),
    "denied": (command("denied"), "not today"),
    "expired": (command("expired"), "nobody answered in time"),
    "question": (ToolUse("ask_user", {"question": "Which?"}, "question"), "this one"),
    "child": (delegate("below", "BELOW", "child"), "seen below"),
    "no child": (delegate("beside", "BESIDE", "no child"), "all sub-agents"),
    "beyond": (listing("beyond"), "the budget for tool calls covered"),
    "cut": (ToolUse("write_file", {"path": "cut.txt", "content": "be"}, "cut"), "was cut at the limit"),
}
"""Every fate of a call in a run that goes on: the call, and a part of what the model reads."""
UNANSWERED: Final = "the run ended while this waited for approval"
ENDS: Final = {
    "UNANSWERED": {"first": (listing("first"), "the run ended"), "open": (command("open"), UNANSWERED)},
    "CANCELLED": {
        "read": (listing("read"), ""),
        "sleeps": (command("sleeps", "touch begun; sleep 60"), "the run ended"),
        "later": (command("later"), "the run ended"),
    },
    "DONE": {
        "beside": (listing("beside"), "was called beside"),
        "d": (ToolUse("done", {"result": "ok"}, "d"), "Done."),
    },
    "LAST": {"last": (listing("last"), "turns are used up")},
}
"""The same of calls that a run ends with."""


async def test_every_call_that_a_model_makes_is_seen_in_every_view(working: Working, workspace: Path) -> None:
    app = LoomApp()
    app.intercept(Gate())
    replies = {"FATES": [replace(calls(*(use for use, _ in FATES.values())), finish="length"), text("done")]}
    replies |= {name: [calls(*(use for use, _ in fates.values())), text("the end")] for name, fates in ENDS.items()}
    loom, _ = await working(by_task({**replies, "BELOW": [text("seen below")]}), app=app, approval_timeout=2.0)
    rules = {**RULES, "delegate_task": "allow"}
    fates = await loom.start("FATES", permissions=rules, budget={"tool_calls": 8, "children": 1})
    unanswered, done = await loom.start("UNANSWERED", permissions=RULES), await loom.start("DONE")
    cancelled, last = (
        await loom.start("CANCELLED", permissions={"bash": "allow"}),
        await loom.start("LAST", max_turns=1),
    )

    await loom.asked(unanswered)
    await loom.client.abort(unanswered)
    await loom.asked(fates, calls=3)
    await loom.client.approve(fates, "approved")
    await loom.client.deny(fates, "denied", reason="not today", by="ann")
    await loom.until(cancelled, lambda _: (workspace / "begun").exists())
    await loom.client.abort(cancelled)
    await loom.until(fates, lambda status: status["status"] == "waiting_for_input")
    await loom.client.send(fates, "this one", by="ann")

    expected = dict(zip((unanswered, cancelled, done, last), ENDS.values(), strict=True)) | {fates: FATES}
    await asyncio.gather(*(assert_seen(loom, run_id, each) for run_id, each in expected.items()))
    assert not (workspace / "cut.txt").exists()


async def assert_seen(loom: Harness, run_id: str, fates: Mapping[str, tuple[ToolUse, str]]) -> None:
    """Each of these calls of the first turn, with what became of it, in the stream, the past, and on the screen."""
    await loom.client.result(run_id)
    events = await told(loom.client, run_id)
    _, (first, *_), decisions, _ = await read_turns(loom.client, run_id)
    view, lines = turn_view(first, decisions), "\n".join(turn_lines(first, decisions))
    shown = {call["call_id"]: str(call["content"] or call["error"]) for call in view["tool_calls"] + view["children"]}
    screens = [on_screen(events, run_id, live=live) for live in (True, False)]
    exported = {
        record["call_id"]: record["result"]
        async for record in loom.client.export(run_id)
        if record["record"] == "tool_call" and record["run_id"] == run_id
    }

    await assert_made_again(loom, run_id)
    assert set(shown) == set(exported) == set(fates)
    below = {child["call_id"] for child in view["children"]}
    assert [call["call_id"] for call in view["tool_calls"]] == [name for name in fates if name not in below]
    for name, (use, reason) in fates.items():
        ends = [task for task in of_call(events, name) if task.action is Action.TOOL_RESULT]
        if use.name != "ask_user":  # a question and its answer are messages
            assert [reason in str(task.result) for task in ends] == [True], (name, ends)
        assert reason in shown[name] or name == "sleeps", (name, shown[name])
        assert name == "sleeps" or reason in str(exported[name]), (name, exported[name])
        assert all(reason in view for view in (lines, *screens)), (name, reason, lines, screens)
