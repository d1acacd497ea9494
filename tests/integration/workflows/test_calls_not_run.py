"""Calls that never run: people see each of them on the stream, on the screen and in the past, once, with its reason."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from loom.activities.plan_calls import CallPreparer
from loom.cli.commands.show import _turn_lines
from loom.cli.watch.screen import Screen
from loom.domain.core.tasks import Action, Task
from loom.testing.model_server import ToolUse, calls, script, status, text
from loom.testing.stream import assert_whole, told
from loom.watching import Streamed
from tests.corpora.secrets.making import ALNUM, Maker
from tests.integration.workflows.conftest import Working

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
    past = "\n".join(_turn_lines(first, {}))
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
    assert "✗ bash: touch c.txt: Denied by ann: not today" in "\n".join(_turn_lines(first, {}))


async def test_a_call_beyond_the_budget_is_told(working: Working) -> None:
    loom, _ = await working(script([calls(LOOK, ASKED), text("done")]))
    run_id = await loom.start(permissions=RULES, budget={"tool_calls": 1})
    await loom.client.result(run_id)

    (ended,) = of_call(await told(loom.client, run_id), "asked")

    assert ended.result is not None
    assert ended.result["content"] == "not run: the budget for tool calls covered 1 more"


async def test_a_call_beside_done_is_told(working: Working) -> None:
    loom, _ = await working(script([calls(LOOK, ToolUse("done", {"result": "all done"}, "d"))]))
    run_id = await loom.start()
    result = await loom.client.result(run_id)

    (ended,) = of_call(await told(loom.client, run_id), "look")

    assert result.output == "all done"
    assert ended.result is not None
    assert ended.result["content"] == "not run: `done` was called beside this"


async def test_a_call_that_cannot_be_told_costs_no_second_reply(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise ValueError("not told")

    monkeypatch.setattr(CallPreparer, "tell_not_run", fails)
    loom, model = await working(script([calls(UNKNOWN), text("done")]))
    assert (await loom.run()).output == "done"
    assert len(model.requests) == 2


async def test_the_last_call_of_a_reply_that_was_cut_does_not_run(working: Working, workspace: Path) -> None:
    cut = ToolUse("write_file", {"path": "cut.txt", "content": "beg"}, "cut")
    replies = [replace(calls(LOOK, cut), finish="length"), text("done")]
    loom, model = await working(script(replies))
    run_id = await loom.start(permissions={"write_file": "allow"})
    await loom.client.result(run_id)

    events = await told(loom.client, run_id)

    assert [task.status for task in of_call(events, "look")] == ["running", "success"]
    assert [task.status for task in of_call(events, "cut")] == ["error", "error"]
    assert not (workspace / "cut.txt").exists()
    read = {message["tool_call_id"]: message["content"] for message in model.requests[1].messages[-2:]}
    assert "was cut at the limit" in read["cut"]
