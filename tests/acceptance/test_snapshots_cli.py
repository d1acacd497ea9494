"""`loom diff` and `loom restore` end to end: without a server, and beside a run that still goes on."""

from pathlib import Path

from loom.activities.adapters.snapshots.shadow_git import ShadowGit
from loom.testing.harness import Addresses, Harness, settings_for
from loom.testing.model_server import ModelServer, calls, script, text
from loom.testing.worker_processes import environment
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import WRITE, Cli, command_line

NOWHERE = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}


def alone(addresses: Addresses, workspace: Path) -> Cli:
    """The command line where no server answers."""
    settings = settings_for(addresses, workspace, ModelServer(script([])))
    return Cli(env={**environment(settings, workspace.parent), **NOWHERE})


def snapshots_of(workspace: Path) -> ShadowGit:
    """Where a worker with the settings of these tests keeps its snapshots."""
    return ShadowGit(workspace.parent / ".loom")


async def test_a_run_is_shown_and_taken_back_without_a_server(addresses: Addresses, workspace: Path) -> None:
    cli, snapshots = alone(addresses, workspace), snapshots_of(workspace)
    (workspace / "a.txt").write_text("one\n")
    first = await snapshots.take(workspace, "r1", 1, "c1")
    (workspace / "a.txt").write_text("two\n")
    (workspace / "\x1b]0;bad\x07").write_text("came\n")

    shown = await cli("diff", "r1")
    assert (shown.code, shown.err) == (0, "")
    assert "-one\n+two\n" in shown.out
    listed = (await cli("diff", "r1", "--turn", "1", "--json")).json
    assert [(each["path"], each["change"]) for each in listed["files"]] == [
        ("\x1b]0;bad\x07", "added"),
        ("a.txt", "modified"),
    ]

    would = await cli("restore", "r1", "--turn", "1", "--dry-run")
    assert (would.code, would.out) == (0, "write: a.txt\nremove: \\x1b]0;bad\\x07\n")
    unasked = await cli("restore", "r1", "--turn", "1")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert (workspace / "a.txt").read_text() == "two\n"

    done = await cli("restore", "r1", "--turn", "1", "--yes", "--json")
    assert (done.code, "no server is responding" in done.err) == (0, True)
    assert done.json["snapshot"]["id"] == first
    assert {key: done.json[key] for key in ("run_id", "written", "removed", "permissions", "left")} == {
        "run_id": "r1",
        "written": ["a.txt"],
        "removed": ["\x1b]0;bad\x07"],
        "permissions": [],
        "left": {},
    }
    assert [path.name for path in workspace.iterdir()] == ["a.txt"]
    back = await cli("restore", "r1", "--snapshot", done.json["undo"][:12], "--yes")
    assert back.code == 0
    assert (workspace / "a.txt").read_text() == "two\n"


async def test_what_is_not_here_is_said_clearly(addresses: Addresses, workspace: Path) -> None:
    cli, snapshots = alone(addresses, workspace), snapshots_of(workspace)
    unknown = await cli("diff", "r2")
    assert (unknown.code, "on the machine of the worker that took them" in unknown.err) == (2, True)
    await snapshots.take(workspace, "r2", 3, "c1")
    wrong = await cli("restore", "r2", "--turn", "1", "--yes")
    assert (wrong.code, "turn 1 has no snapshot: it changed nothing. Turns with a snapshot: 3" in wrong.err) == (
        2,
        True,
    )
    without = Cli(env={**cli.env, "PATH": str(workspace)})
    lacking = await without("diff", "r2")
    assert (lacking.code, "the `git` program" in lacking.err) == (2, True)


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
