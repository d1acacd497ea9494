"""diff, restore: what a run did to its workspace, and taking it back. They need no server and no worker."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loom.cli.output import console, counted, one_line, plain, print_json, tell, visible
from loom.domain.core.errors import BadRequest, RefusedError, RunNotFoundError, UnreachableError
from loom.domain.core.requests import RunStatus
from loom.exit_codes import FAILED

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.activities.adapters.snapshots.restore import RestoreChanges
    from loom.activities.adapters.snapshots.shadow_git import Difference, ShadowGit
    from loom.activities.adapters.snapshots.store import Snapshot

MOST_PATHS: Final = 40
"""Paths of one kind that people are shown."""
OPEN: Final = (RunStatus.RUNNING, RunStatus.WAITING_FOR_APPROVAL, RunStatus.WAITING_FOR_INPUT)

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (diff, restore):
        app.command()(command)


def diff(
    run_id: Run,
    turn: Annotated[int | None, typer.Option(metavar="N", help="Only what this turn changed.")] = None,
    as_json: Json = False,
) -> None:
    """What a run changed in its workspace, from its first change until now.

    With --turn: until the next snapshot, which another turn or a restore has taken, or until now.
    """
    with explained():
        found = shadow_git().diff(run_id, turn)
    if as_json:
        print_json({"run_id": run_id, **_difference(found)})
        return
    _print_patch(found.patch)
    if not found.files:
        tell("nothing changed")


def restore(
    run_id: Run,
    *,
    turn: Annotated[int | None, typer.Option(metavar="N", help="To the state before this turn.")] = None,
    snapshot: Annotated[str, typer.Option(metavar="ID", help="To the state of this snapshot of the run.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even while the run goes on.")] = False,
    as_json: Json = False,
) -> None:
    """Put the files of a run's workspace back as they were.

    What is there is snapshotted first, so that a restore can be undone. Exit code 1: some paths were left as they are.
    """
    snapshots = shadow_git()
    with explained():
        target, todo = snapshots.plan(run_id, turn=turn, snapshot=snapshot)
    if dry_run:
        _report(run_id, target, todo, undo=None, left=todo.left, as_json=as_json)
        return
    if not force:
        _refuse_while_open(run_id)
    if not yes:
        _confirm(target, todo, as_json=as_json)
    with explained():
        done = snapshots.restore(run_id, snapshot=target.id)
    _report(run_id, target, done.plan, undo=done.undo, left=done.left, as_json=as_json)
    if done.left:
        raise typer.Exit(FAILED)


@contextmanager
def explained() -> Iterator[None]:
    """What keeps Loom from its snapshots, in words for the person who wants them."""
    from loom.activities.ports import StoreUnavailable  # noqa: PLC0415

    try:
        yield
    except StoreUnavailable as error:
        raise RefusedError(str(error)) from None


def shadow_git() -> "ShadowGit":
    from loom.activities.adapters.snapshots.shadow_git import ShadowGit  # noqa: PLC0415
    from loom.composition.load_settings import read_settings  # noqa: PLC0415

    return ShadowGit(read_settings().home)


def _refuse_while_open(run_id: str) -> None:
    """A run that goes on would change files under the restore; without a server nobody knows."""
    from loom.cli.connection import with_client  # noqa: PLC0415

    try:
        status = str(with_client(lambda loom: loom.status(run_id))["status"])
    except UnreachableError:
        tell("no server answers: nobody can say whether the run still goes on")
        return
    except RunNotFoundError:
        return
    if status in OPEN:
        raise RefusedError(
            f"run {run_id!r} still goes on ({status.replace('_', ' ')}): `loom pause {run_id}` or"
            f" `loom abort {run_id}` first, or use --force"
        )


def _confirm(target: "Snapshot", todo: "RestoreChanges", *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise BadRequest("restore asks before it writes: give --yes, or --dry-run to see what it would do", field="yes")
    _print_plan(todo)
    typer.confirm(f"Go back to the state {_state(target)}?", abort=True)


def _report(
    run_id: str, target: "Snapshot", todo: "RestoreChanges", *, undo: str | None, left: Mapping[str, str], as_json: bool
) -> None:
    if as_json:
        print_json(_restored(run_id, target, todo, undo, left))
        return
    _print_plan(todo, left)
    if undo is None:
        tell(f"nothing was done; this is what going back to the state {_state(target)} would do")
        return
    typer.echo(f"restored the state {_state(target)}; to undo: loom restore {run_id} --snapshot {undo[:12]}")
    if left:
        tell(f"{counted(len(left), 'path')} left as found, see above")


def _print_plan(todo: "RestoreChanges", left: Mapping[str, str] | None = None) -> None:
    skipped = left or todo.left
    kinds = {"write": todo.write, "remove": todo.remove, "permissions": todo.permit}
    for kind, paths in kinds.items():
        _print_paths(kind, [path for path in paths if path not in skipped])
    for path, reason in skipped.items():
        typer.echo(f"left as found: {visible(path)}: {one_line(reason)}")
    if todo.is_empty and not skipped:
        typer.echo("nothing differs")


def _print_paths(kind: str, paths: list[str]) -> None:
    for path in paths[:MOST_PATHS]:
        typer.echo(f"{kind}: {visible(path)}")
    if len(paths) > MOST_PATHS:
        typer.echo(f"{kind}: … and {len(paths) - MOST_PATHS} more")


def _print_patch(patch: bytes) -> None:
    """For programs byte by byte; on a terminal in colours and with nothing that can steer it."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()
        return
    styles = {"+": "green", "-": "red", "@": "cyan"}
    out = console()
    for line in plain(patch.decode("utf-8", "replace")).splitlines():
        out.print(line, style=styles.get(line[:1], ""), soft_wrap=True)


def _state(target: "Snapshot") -> str:
    if target.turn is None:
        return f"before the restore at {target.at:%Y-%m-%d %H:%M:%S} UTC"
    return f"before turn {target.turn}, as of {target.at:%Y-%m-%d %H:%M:%S} UTC"


def _difference(found: "Difference") -> dict[str, Any]:
    return {
        "before": found.before,
        "after": found.after,
        "files": found.files,
        "patch": found.patch.decode("utf-8", "replace"),
    }


def _restored(
    run_id: str, target: "Snapshot", todo: "RestoreChanges", undo: str | None, left: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "snapshot": target,
        "undo": undo,
        "written": [path for path in todo.write if path not in left],
        "removed": [path for path in todo.remove if path not in left],
        "permissions": [path for path in todo.permit if path not in left],
        "left": left,
    }
