"""`loom fork` and `loom diff-runs` end to end."""

import getpass
from pathlib import Path

import pytest

from loom.testing.model_server import ToolUse, calls, script, text
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import command_line, new_id

ALLOWED = '{"write_file": "allow"}'


def write(content: str, call_id: str) -> ToolUse:
    return ToolUse("write_file", {"path": "out.txt", "content": content}, call_id)


@pytest.mark.slow
async def test_a_run_is_forked_with_the_files_of_the_turn_and_compared(working: Working, workspace: Path) -> None:
    replies = [calls(write("first", "w1")), calls(write("second", "w2")), text("two drafts")]
    answers = [*replies, calls(ToolUse("read_file", {"path": "out.txt"}, "r1")), text("one")]
    loom, _ = await working(script(answers), workspaces=(workspace.parent,))
    cli, origin, fork = command_line(loom), new_id(), new_id()
    await cli("run", "write it", "--id", origin, "--workspace", str(workspace), "--permissions", ALLOWED, "--json")
    folder = workspace.parent / "restored"

    went = await cli(
        "fork", origin, "--turn", "1", "--id", fork, "--message", "look", "--restore", str(folder), "--json"
    )

    assert (went.code, went.json["output"], went.json["turns"]) == (0, "one", 2)
    assert f"the files as of the end of turn 1 are in {folder}" in went.err
    assert ((folder / "out.txt").read_text(), (workspace / "out.txt").read_text()) == ("first", "second")
    assert (await cli.status(fork))["forked_from"] == {"run_id": origin, "turn": 1}
    assert {await loom.client.started_by(each) for each in (origin, fork)} == {getpass.getuser()}

    told = (await cli("diff-runs", origin, fork, "--json")).json
    assert told["first_difference"]["differs"] == ["calls", "results"]
    assert (told["first_difference"]["a"]["number"], told["first_difference"]["b"]["number"]) == (2, 1)
    assert (told["a"]["tools"], told["b"]["tools"]) == ({"write_file": 2}, {"read_file": 1})
    assert (told["a"]["output"], told["b"]["output"]) == ("two drafts", "one")
    assert told["b"]["forked_from"] == {"run_id": origin, "turn": 1}
    shown = await cli("diff-runs", origin, fork)
    assert shown.code == 0
    assert "0 of 2 turns are the same" in shown.out
    assert "3 turns, all the same" in (await cli("diff-runs", origin, origin)).out
    assert "first" in shown.out
    assert "tools        write_file 2" in shown.out


@pytest.mark.slow
async def test_a_fork_says_that_files_are_as_they_are_now(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(write("first", "w1")), text("written"), text("again")]))
    cli, origin = command_line(loom), await loom.start("write it", permissions={"write_file": "allow"})
    await loom.client.result(origin)

    went = await cli("fork", origin, "--turn", "0", "--detach", "--json")

    assert went.code == 0
    assert "1 later call may have changed them" in went.err
    assert f"loom restore {origin} --turn 1" in went.err
    assert (await cli("result", went.json["run_id"])).code == 0


@pytest.mark.slow
async def test_what_cannot_be_forked_or_compared_is_a_wrong_request(working: Working) -> None:
    loom, _ = await working(script([text("Four.")]))
    cli, origin = command_line(loom), new_id()
    await cli("run", "two and two", "--id", origin, "--workspace", str(loom.workspace), "--json")

    unknown = await cli("fork", "nobody", "--turn", "1")
    beyond = await cli("fork", origin, "--turn", "3", "--message", "x")
    answered = await cli("fork", origin, "--turn", "1")
    taken = await cli("fork", origin, "--turn", "1", "--message", "x", "--id", origin)
    other = await cli("diff-runs", origin, "nobody")

    assert [ran.code for ran in (unknown, beyond, answered, taken, other)] == [2] * 5
    assert "no run 'nobody'" in unknown.err
    assert "no turn 3" in beyond.err
    assert "add a message that says how to continue" in answered.err
    assert "already exists" in taken.err
