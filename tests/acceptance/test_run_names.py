"""How people name runs and calls at the command line: whole ids, their beginnings, `@last` and rows of the list."""

from functools import partial
from pathlib import Path

import pytest

from loom.cli.run_names import call_named, remember_started, run_named
from loom.domain.core.errors import BadRequest, RunNotFoundError
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import command_line, new_id
from tests.trees import delegate


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody has started a run before."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def listed(loom: Harness, run_id: str) -> bool | None:
    """Whether the server lists a run; it does so shortly after the run started."""
    return any(run.run_id == run_id for run in await loom.client.list(below=run_id)) or None


async def test_a_run_is_named_by_the_beginning_of_its_id_and_its_sub_agents_do_not_make_it_ambiguous(
    working: Working,
) -> None:
    loom, _ = await working(script([calls(delegate("look", "look around")), text("seen"), text("done")]))
    run_id = await loom.start()
    await loom.client.result(run_id)
    child = (await loom.below(run_id))[0]
    await eventually(lambda: listed(loom, run_id))

    assert await run_named(loom.client, run_id) == run_id
    assert await run_named(loom.client, run_id[:-2]) == run_id
    assert await run_named(loom.client, child[:-2]) == child
    with pytest.raises(RunNotFoundError):
        await run_named(loom.client, f"{run_id}-and-more")


async def test_an_ambiguous_beginning_is_refused_with_the_candidates_and_code_2(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    beginning = new_id()
    both = [f"{beginning}-red", f"{beginning}-blue"]
    for run_id in both:
        await loom.client.start("do it", run_id=run_id, workspace=str(loom.workspace))
        await loom.client.result(run_id)
    for run_id in both:
        await eventually(partial(listed, loom, run_id))

    ran = await command_line(loom)("status", beginning)
    unknown = await command_line(loom)("diff", f"{beginning}-green")

    assert unknown.code == 2
    assert unknown.err.startswith(f"loom: there is no run '{beginning}-green'")
    assert ran.code == 2
    assert "the ids of 2 runs begin with" in ran.err
    assert all(run_id in ran.err for run_id in both)


@pytest.mark.usefixtures("started")
async def test_at_last_is_the_newest_run_of_this_terminal_and_else_the_newest_of_all(
    working: Working, capsys: pytest.CaptureFixture[str]
) -> None:
    loom, _ = await working(script([text("done")]))
    mine, newest = await loom.start(), await loom.start()
    await eventually(lambda: listed(loom, newest))

    assert await run_named(loom.client, "@last") == await run_named(loom.client, "@1")
    remember_started(loom.client, mine)
    assert await run_named(loom.client, "@last") == mine
    assert f"@last is {mine}" in capsys.readouterr().err
    remember_started(loom.client, "a-run-of-a-stack-that-is-gone")
    assert await run_named(loom.client, "@last") == mine


async def test_rows_of_the_list_are_names_and_a_row_that_is_not_there_is_refused(working: Working) -> None:
    loom, _ = await working(script([text("done")]))
    run_id = await loom.start()
    await eventually(lambda: listed(loom, run_id))

    assert await run_named(loom.client, "@1") == run_id
    for name in ("", "@0", "@first", "@99999"):
        with pytest.raises(BadRequest):
            await run_named(loom.client, name)


async def test_a_call_is_approved_by_the_beginning_of_its_id(working: Working, workspace: Path) -> None:
    write = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "call-one")
    loom, _ = await working(script([calls(write), text("written")]))
    cli, run_id = command_line(loom), await loom.start()
    await loom.asked(run_id)
    await eventually(lambda: listed(loom, run_id))

    assert (await cli("approve", run_id[:-1], "call")).code == 0
    await loom.client.result(run_id)
    assert (workspace / "out.txt").read_text() == "hello"


def test_the_beginning_of_several_pending_calls_is_refused() -> None:
    status = {"pending_approvals": [{"call_id": "call-1"}, {"call_id": "call-12"}]}

    assert call_named(status, "call-1") == "call-1"
    assert call_named(status, "call-12") == "call-12"
    assert call_named(status, "gone") == "gone"
    with pytest.raises(BadRequest, match="call-1, call-12"):
        call_named(status, "call")
