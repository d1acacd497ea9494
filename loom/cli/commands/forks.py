"""The `fork` and `diff-runs` commands, which start a run from a past turn of another run and compare two runs."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from loom.cli.arguments import (
    RUN_HELP,
    Budget,
    Json,
    Model,
    Patience,
    PermissionMode,
    RunId,
    absolute,
    new_app,
    read_fields,
    user_name,
)
from loom.cli.commands.run import launch, unattended
from loom.cli.commands.snapshots import explained, shadow_git
from loom.cli.connection import with_client
from loom.cli.output import console, counted, money, one_line, print_json, print_notice, tokens
from loom.cli.run_names import run_named
from loom.client import LoomClient
from loom.domain.core.requests import ENDED, ForkedFrom
from loom.domain.history.diffs import Side, TurnPair, TurnSeen, first_difference, paired, tools_used

Compared: TypeAlias = tuple[Side, dict[str, Any]]
"""A run's turns and status."""

WIDTH: Final = 48
"""Width of one run's column in characters."""
ROWS: Final = (
    "run_id",
    "forked_from",
    "status",
    "model",
    "turns",
    "tool_calls",
    "tokens",
    "cost",
    "tools",
    "output",
)

app = new_app()


@app.command()
def fork(
    run_id: RunId,
    *,
    turn: Annotated[
        int, typer.Option(min=0, metavar="N", help="Continue after this turn; 0 starts before the first turn.")
    ],
    message: Annotated[str | None, typer.Option(metavar="TEXT", help="Message to the agent after that turn.")] = None,
    model: Model = None,
    permissions: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Rules that override the run's rules at that turn.")
    ] = None,
    mode: PermissionMode = None,
    workspace: Annotated[str | None, typer.Option(metavar="DIR", help="Another folder for the new run.")] = None,
    restore: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Restore the files as of the end of that turn to this new folder."),
    ] = None,
    max_turns: Annotated[int | None, typer.Option(help="Maximum number of turns of the new run.")] = None,
    patience: Patience = None,
    budget: Budget = None,
    fork_id: Annotated[str | None, typer.Option("--id", metavar="NEW", help="Id for the new run.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run, print its id and return.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every tool call of the new run.")] = False,
    as_json: Json = False,
) -> None:
    """Start a new run from a past turn of another run.

    The new run starts with the conversation up to that turn and doesn't repeat any tool call. Files stay unchanged
    unless you restore a snapshot with --restore. Exit codes are the same as for `loom run`.
    """
    if restore is not None and workspace is not None:
        raise typer.BadParameter("use --restore or --workspace: the restored folder is the new run's workspace")
    changes = read_fields(
        model=model,
        permissions=permissions,
        mode=mode,
        workspace=restore or workspace,
        max_turns=max_turns,
        patience=patience,
        budget=budget,
    )
    if yes and detach:
        changes = unattended(changes)

    async def start(loom: LoomClient) -> str:
        source = await run_named(loom, run_id)
        point = await loom.fork_point(ForkedFrom(run_id=source, turn=turn, message=message))
        if restore is not None:
            _restore(source, turn, absolute(restore, "--restore"))
        elif workspace is None and point.later_effects:
            print_notice(
                f"the fork uses current files in {point.spec.workspace}: {counted(point.later_effects, 'later call')}"
                f" may have changed them. --restore DIR restores the files of turn {turn} to a new folder;"
                f" `loom restore {source} --turn {turn + 1}` restores them in place"
            )
        return await loom.fork(source, turn=turn, message=message, fork_id=fork_id, by=user_name(), **changes)

    launch(start, detach=detach, yes=yes, as_json=as_json)


def _restore(run_id: str, turn: int, folder: str) -> None:
    with explained():
        found = shadow_git().extract(run_id, after=turn, folder=Path(folder))
    state = "no later change has a snapshot" if found is None else f"as of {found.at:%Y-%m-%d %H:%M:%S} UTC"
    print_notice(f"the files as of the end of turn {turn} are in {folder} ({state})")


@app.command(name="diff-runs")
def diff_runs(
    a: Annotated[str, typer.Argument(metavar="A", help=RUN_HELP)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run, named in the same way.")],
    as_json: Json = False,
) -> None:
    """Compare two runs turn by turn."""

    async def read(loom: LoomClient) -> tuple[Compared, Compared]:
        return await _side(loom, await run_named(loom, a)), await _side(loom, await run_named(loom, b))

    one, other = with_client(read)
    if as_json:
        print_json(_difference(one, other))
        return
    out = console()
    for line in _difference_lines(one, other):
        out.print(line, soft_wrap=not out.is_terminal)


async def _side(loom: LoomClient, run_id: str) -> Compared:
    status = await loom.status(run_id)
    output = (await loom.result(run_id)).output if status["status"] in ENDED else ""
    forked = status.get("forked_from")
    side = Side(run_id=run_id, turns=await loom.turns(run_id), forked_from=ForkedFrom(**forked) if forked else None)
    return side, {**status, "output": output}


def _difference(one: Compared, other: Compared) -> dict[str, Any]:
    """Return the complete comparison for `--json`."""
    pairs = paired(one[0], other[0])
    first = first_difference(pairs)
    return {
        "a": _summary(*one),
        "b": _summary(*other),
        "first_difference": None if first is None else _pair(first),
        "turns": [_pair(pair) for pair in pairs],
    }


def _difference_lines(one: Compared, other: Compared) -> Iterator[str]:
    """Return lines that show the first difference, followed by both runs side by side."""
    pairs = paired(one[0], other[0])
    first = first_difference(pairs)
    same = pairs.index(first) if first is not None else len(pairs)
    turns = counted(len(pairs), "turn")
    if first is None:
        yield f"{turns}, all the same"
    else:
        yield f"{same} of {turns} {'is' if same == 1 else 'are'} the same"
        yield f"the first difference is in {', '.join(first.differs)}:"
        for name, seen in (("a", first.a), ("b", first.b)):
            yield from _turn_lines(name, seen)
    yield ""
    a, b = _summary(*one), _summary(*other)
    for name in ROWS:
        yield f"{name.replace('_', ' '):<12} {_cell(name, a[name]):<{WIDTH}}  {_cell(name, b[name])}".rstrip()


def _summary(side: Side, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "run_id": side.run_id,
        "forked_from": status.get("forked_from"),
        "status": status["status"],
        "model": status["model"],
        "turns": status["turn"],
        "tool_calls": status.get("tool_calls"),
        "tokens": status["usage"].get("total_tokens"),
        "cost": status["cost"],
        "tools": dict(tools_used(side.turns)),
        "output": status["output"],
    }


def _pair(pair: TurnPair) -> dict[str, Any]:
    return {
        "a": asdict(pair.a) if pair.a else None,
        "b": asdict(pair.b) if pair.b else None,
        "differs": list(pair.differs),
    }


def _turn_lines(name: str, seen: TurnSeen | None) -> Iterator[str]:
    if seen is None:
        yield f"  {name}: no such turn"
        return
    yield f"  {name}: turn {seen.number}, {seen.model}: {one_line(seen.text) or '(no text)'}"
    for call, result in zip(seen.calls, seen.results, strict=True):
        yield f"       → {one_line(call)}"
        yield f"         {one_line(result) or '(no result)'}"


def _cell(name: str, value: Any) -> str:
    if name == "cost":
        return money(value)
    if name == "tokens":
        return "" if value is None else tokens(value)
    if name == "tools":
        return one_line(", ".join(f"{tool} {count}" for tool, count in value.items()) or "none", WIDTH)
    if name == "forked_from":
        return f"{one_line(value['run_id'], WIDTH - 10)} turn {value['turn']}" if value else "-"
    return one_line("" if value is None else str(value), WIDTH)
