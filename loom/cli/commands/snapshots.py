"""The `diff` and `restore` commands, which show and undo a run's changes to its workspace.

These commands need neither a server nor a worker, unless you shorten the run's id.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import typer

from loom.activities.adapters.snapshots.restore import RestoreChanges
from loom.activities.adapters.snapshots.shadow_git import Difference, ShadowGit
from loom.activities.adapters.snapshots.store import Snapshot
from loom.activities.ports import StoreUnavailable
from loom.cli.arguments import Json, RunId, new_app
from loom.cli.connection import with_client
from loom.cli.output import console, counted, one_line, plain, print_json, print_notice, visible
from loom.cli.run_names import run_named
from loom.composition.load_settings import read_settings
from loom.domain.core.errors import BadRequest, RefusedError, RunNotFoundError, UnreachableError
from loom.domain.core.requests import RunStatus
from loom.exit_codes import FAILED

MAX_PATHS: Final = 40
"""Maximum number of paths to print for each kind of change."""
OPEN: Final = (RunStatus.RUNNING, RunStatus.WAITING_FOR_APPROVAL, RunStatus.WAITING_FOR_INPUT)

app = new_app()


@app.command()
def diff(
    run_id: RunId,
    turn: Annotated[int | None, typer.Option(metavar="N", help="Show only this turn's changes.")] = None,
    as_json: Json = False,
) -> None:
    """Show a run's changes to its workspace.

    Without --turn, the diff covers the time from the run's first change until now. With --turn, it starts at that turn
    and ends at the next snapshot, or now if there is none. Later turns and restores take snapshots.
    """
    run_id = _named(run_id)
    with explained():
        found = shadow_git().diff(run_id, turn)
    if as_json:
        print_json({"run_id": run_id, **_diff_view(found)})
        return
    _print_patch(found.patch)
    if not found.files:
        print_notice("nothing changed")


@app.command()
def restore(
    run_id: RunId,
    *,
    turn: Annotated[int | None, typer.Option(metavar="N", help="Restore the state before this turn.")] = None,
    snapshot: Annotated[str, typer.Option(metavar="ID", help="Restore this snapshot of the run.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the planned changes without applying them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Restore even while the run is still running.")] = False,
    as_json: Json = False,
) -> None:
    """Restore the files in a run's workspace.

    Loom takes a snapshot of the current state first, so that you can undo the restore. Exit code 1 means that some
    paths were left unchanged.
    """
    run_id = _named(run_id)
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
    """Raise a RefusedError with a readable message if snapshots are unavailable."""
    try:
        yield
    except StoreUnavailable as error:
        raise RefusedError(str(error)) from None


def shadow_git() -> ShadowGit:
    """Return the snapshot store in Loom's home directory."""
    return ShadowGit(read_settings().home)


def _named(name: str) -> str:
    """Return the id of the run that a person names. A run with exactly this id needs no server."""
    with explained(), suppress(RunNotFoundError):
        shadow_git().list(name)
        return name
    with suppress(UnreachableError):
        return with_client(lambda loom: run_named(loom, name))
    return name


def _refuse_while_open(run_id: str) -> None:
    """Raise RefusedError if the run is still running, because it could change files during the restore."""
    try:
        status = str(with_client(lambda loom: loom.status(run_id))["status"])
    except UnreachableError:
        print_notice("no server is responding, so Loom cannot tell whether the run is still running")
        return
    except RunNotFoundError:
        return
    if status in OPEN:
        raise RefusedError(
            f"run {run_id!r} is still running ({status.replace('_', ' ')}): use `loom pause {run_id}` or"
            f" `loom abort {run_id}` first, or --force"
        )


def _confirm(target: Snapshot, todo: RestoreChanges, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise BadRequest(
            "cannot ask for confirmation here: use --yes, or --dry-run to see the planned changes", field="yes"
        )
    _print_plan(todo)
    typer.confirm(f"Restore the state {_state(target)}?", abort=True)


def _report(
    run_id: str, target: "Snapshot", todo: "RestoreChanges", *, undo: str | None, left: Mapping[str, str], as_json: bool
) -> None:
    if as_json:
        print_json(_restore_view(run_id, target, todo, undo, left))
        return
    _print_plan(todo, left)
    if undo is None:
        print_notice(f"dry run: restoring the state {_state(target)} would make these changes")
        return
    typer.echo(f"restored the state {_state(target)}; to undo: loom restore {run_id} --snapshot {undo[:12]}")
    if left:
        print_notice(f"left {counted(len(left), 'path')} unchanged; see above")


def _print_plan(todo: RestoreChanges, left: Mapping[str, str] | None = None) -> None:
    skipped = left or todo.left
    kinds = {"write": todo.write, "remove": todo.remove, "permissions": todo.permit}
    for kind, paths in kinds.items():
        _print_paths(kind, [path for path in paths if path not in skipped])
    for path, reason in skipped.items():
        typer.echo(f"left unchanged: {visible(path)}: {one_line(reason)}")
    if todo.is_empty and not skipped:
        typer.echo("nothing differs")


def _print_paths(kind: str, paths: list[str]) -> None:
    for path in paths[:MAX_PATHS]:
        typer.echo(f"{kind}: {visible(path)}")
    if len(paths) > MAX_PATHS:
        typer.echo(f"{kind}: … and {len(paths) - MAX_PATHS} more")


def _print_patch(patch: bytes) -> None:
    """Print the patch. A pipe receives the exact bytes. A terminal receives colored text without control characters."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()
        return
    styles = {"+": "green", "-": "red", "@": "cyan"}
    out = console()
    for line in plain(patch.decode("utf-8", "replace")).splitlines():
        out.print(line, style=styles.get(line[:1], ""), soft_wrap=True)


def _state(target: Snapshot) -> str:
    if target.turn is None:
        return f"before the restore at {target.at:%Y-%m-%d %H:%M:%S} UTC"
    return f"before turn {target.turn}, as of {target.at:%Y-%m-%d %H:%M:%S} UTC"


def _diff_view(found: Difference) -> dict[str, Any]:
    return {
        "before": found.before,
        "after": found.after,
        "files": found.files,
        "patch": found.patch.decode("utf-8", "replace"),
    }


def _restore_view(
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
