"""`loom diff` and `loom restore` end to end: without a server, and beside a run that still goes on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loom.activities.adapters.snapshots.shadow_git import ShadowGit
from loom.testing.harness import Harness
from loom.testing.model_server import calls, script, text
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import WRITE, command_line
from tests.commands import Commands, commands_in

NOWHERE = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}


@pytest.fixture
def alone(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """The command line where no server answers."""
    with commands_in(
        workspace.parent, monkeypatch, TEMPORAL_ADDRESS="127.0.0.1:1", LOOM_WORKSPACE=str(workspace)
    ) as commands:
        yield commands


def snapshots_of(workspace: Path) -> ShadowGit:
    """Where a worker with the settings of these tests keeps its snapshots."""
    return ShadowGit(workspace.parent / ".loom")


def test_a_run_is_shown_and_taken_back_without_a_server(alone: Commands, workspace: Path) -> None:
    snapshots = snapshots_of(workspace)
    (workspace / "a.txt").write_text("one\n")
    first = asyncio.run(snapshots.take(workspace, "r1", 1, "c1"))
    (workspace / "a.txt").write_text("two\n")
    (workspace / "\x1b]0;bad\x07").write_text("came\n")

    shown = alone("diff", "r1")
    assert (shown.code, shown.err) == (0, "")
    assert "-one\n+two\n" in shown.out
    listed = json.loads(alone("diff", "r1", "--turn", "1", "--json").out)
    assert [(each["path"], each["change"]) for each in listed["files"]] == [
        ("\x1b]0;bad\x07", "added"),
        ("a.txt", "modified"),
    ]

    would = alone("restore", "r1", "--turn", "1", "--dry-run")
    assert (would.code, would.out) == (0, "write: a.txt\nremove: \\x1b]0;bad\\x07\n")
    unasked = alone("restore", "r1", "--turn", "1")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert (workspace / "a.txt").read_text() == "two\n"

    done = alone("restore", "r1", "--turn", "1", "--yes", "--json")
    assert (done.code, "no server is responding" in done.err) == (0, True)
    restored = json.loads(done.out)
    assert restored["snapshot"]["id"] == first
    assert {key: restored[key] for key in ("run_id", "written", "removed", "permissions", "left")} == {
        "run_id": "r1",
        "written": ["a.txt"],
        "removed": ["\x1b]0;bad\x07"],
        "permissions": [],
        "left": {},
    }
    assert [path.name for path in workspace.iterdir()] == ["a.txt"]
    back = alone("restore", "r1", "--snapshot", restored["undo"][:12], "--yes")
    assert back.code == 0
    assert (workspace / "a.txt").read_text() == "two\n"


def test_what_is_not_here_is_said_clearly(alone: Commands, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = snapshots_of(workspace)
    unknown = alone("diff", "r2")
    assert (unknown.code, "on the machine of the worker that took them" in unknown.err) == (2, True)
    asyncio.run(snapshots.take(workspace, "r2", 3, "c1"))
    wrong = alone("restore", "r2", "--turn", "1", "--yes")
    assert (wrong.code, "turn 1 has no snapshot: it changed nothing. Turns with a snapshot: 3" in wrong.err) == (
        2,
        True,
    )
    monkeypatch.setenv("PATH", str(workspace))
    lacking = alone("diff", "r2")
    assert (lacking.code, "the `git` program" in lacking.err) == (2, True)


@pytest.mark.slow
async def test_a_run_that_goes_on_is_not_restored_under_its_feet(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    cli, run_id = command_line(loom), await _asking(loom)
    await snapshots_of(workspace).take(workspace, run_id, 1, "w1")
    (workspace / "came.txt").write_text("since")

    refused = await cli("restore", run_id, "--turn", "1", "--yes")
    assert (refused.code, f"loom pause {run_id}" in refused.err) == (2, True)
    assert (workspace / "came.txt").exists()

    assert (await cli("pause", run_id)).code == 0
    assert (await cli("restore", run_id, "--turn", "1", "--yes")).code == 0
    assert not (workspace / "came.txt").exists()
    assert (await cli("abort", run_id)).code == 0


async def _asking(loom: Harness) -> str:
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    return run_id
