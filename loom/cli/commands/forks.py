"""fork, diff-runs: another run from a past turn of one, and two runs beside each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loom.cli.arguments import absolute, read_object, read_permissions
from loom.cli.commands.runs import BUDGET, given, launch, unattended
from loom.cli.commands.snapshots import explained, shadow_git
from loom.cli.output import counted, print_json, tell
from loom.domain.core.requests import ENDED, ForkedFrom

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.client import LoomClient
    from loom.domain.history.diffs import Side

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(fork)
    app.command(name="diff-runs")(diff_runs)


def fork(
    run_id: Run,
    *,
    turn: Annotated[int, typer.Option(min=0, metavar="N", help="The turn to go on after; 0: before the first.")],
    message: Annotated[str | None, typer.Option(metavar="TEXT", help="Said to the agent there.")] = None,
    model: Annotated[str | None, typer.Option(help="openai:NAME, anthropic:NAME or demo.")] = None,
    permissions: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Rules laid over those that the run had there.")
    ] = None,
    workspace: Annotated[str | None, typer.Option(metavar="DIR", help="Another folder to work in.")] = None,
    restore: Annotated[
        str | None, typer.Option(metavar="DIR", help="Put the files as the turn left them into this new folder.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(help="Turns after which the new run ends.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="JSON", help=BUDGET)] = None,
    fork_id: Annotated[str | None, typer.Option("--id", metavar="NEW", help="The new run's id.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start it, print its id and leave.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every ask of the new run.")] = False,
    as_json: Json = False,
) -> None:
    """Start a new run from where a turn left another one; nothing that was done is done again.

    Files are as they are now, unless --restore brings back a snapshot. Exit codes are those of `loom run`.
    """
    if restore is not None and workspace is not None:
        raise typer.BadParameter("give --restore or --workspace: the restored folder is the new run's workspace")
    changes = given(
        model=model,
        permissions=read_permissions(permissions) if permissions is not None else None,
        workspace=absolute(folder) if (folder := restore or workspace) is not None else None,
        max_turns=max_turns,
        budget=read_object(budget, "--budget") if budget is not None else None,
    )
    if yes and detach:
        changes = unattended(changes)
    forked = ForkedFrom(run_id=run_id, turn=turn, message=message)

    async def begin(loom: "LoomClient") -> str:
        point = await loom.fork_point(forked)
        if restore is not None:
            _restore(run_id, turn, absolute(restore))
        elif workspace is None and point.later_effects:
            tell(
                f"files in {point.spec.workspace} are as they are now: {counted(point.later_effects, 'later call')} may"
                f" have changed them. --restore DIR gives the fork those of turn {turn} in a new folder;"
                f" `loom restore {run_id} --turn {turn + 1}` takes them back in place"
            )
        return await loom.fork(run_id, turn=turn, message=message, fork_id=fork_id, **changes)

    launch(begin, detach=detach, yes=yes, as_json=as_json)


def _restore(run_id: str, turn: int, folder: str) -> None:
    with explained():
        found = shadow_git().extract(run_id, after=turn, folder=Path(folder))
    state = "as now: no later change has a snapshot" if found is None else f"as of {found.at:%Y-%m-%d %H:%M:%S} UTC"
    tell(f"files after turn {turn} are in {folder}, {state}")


def diff_runs(
    a: Annotated[str, typer.Argument(metavar="A", help="A run's id.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run's id.")],
    as_json: Json = False,
) -> None:
    """Where two runs part, turn by turn, and what each came to."""
    from loom.cli.commands.diff_views import difference, lines  # noqa: PLC0415
    from loom.cli.connection import with_client  # noqa: PLC0415
    from loom.cli.output import console  # noqa: PLC0415

    async def read(loom: "LoomClient") -> "tuple[tuple[Side, dict[str, Any]], tuple[Side, dict[str, Any]]]":
        return await _side(loom, a), await _side(loom, b)

    one, other = with_client(read)
    if as_json:
        print_json(difference(one, other))
        return
    out = console()
    for line in lines(one, other):
        out.print(line, soft_wrap=not out.is_terminal)


async def _side(loom: "LoomClient", run_id: str) -> "tuple[Side, dict[str, Any]]":
    from loom.domain.history.diffs import Side  # noqa: PLC0415

    status = dict(await loom.status(run_id))
    output = (await loom.result(run_id)).output if status["status"] in ENDED else ""
    forked = status.get("forked_from")
    side = Side(run_id=run_id, turns=await loom.turns(run_id), forked_from=ForkedFrom(**forked) if forked else None)
    return side, {**status, "output": output}
