"""run, watch, result, events, list, status, show: starting runs and looking at them."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from loom.cli.arguments import absolute, read_object, read_permissions, read_schema, user_name
from loom.cli.output import print_json, tell
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunResult, RunStatus
from loom.exit_codes import ABORTED, COMPLETED, FAILED, LIMIT

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.client import LoomClient

CODES: Final = {
    RunStatus.COMPLETED: COMPLETED,
    RunStatus.FAILED: FAILED,
    RunStatus.ABORTED: ABORTED,
    RunStatus.LIMIT_REACHED: LIMIT,
    RunStatus.BUDGET_EXHAUSTED: LIMIT,
}
"""How `run`, `watch` and `result` end, by the run's final status."""

BUDGET: Final = 'Limits: {"tokens", "cost_usd", "tool_calls", "turns", "seconds", "depth", "children"}.'

T = TypeVar("T")
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
JsonStream = Annotated[bool, typer.Option("--json", help="Print the events as JSON lines and nothing else.")]
From = Annotated[int, typer.Option("--from", min=0, metavar="OFFSET", help="Show what follows this offset.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (run, watch, result, events, status):
        app.command()(command)
    app.command(name="list")(list_runs)


def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What to do; `-` reads it from standard input.")],
    *,
    agent: Annotated[str | None, typer.Option(help="Which agent.")] = None,
    model: Annotated[str | None, typer.Option(help="openai:NAME, anthropic:NAME or demo.")] = None,
    session: Annotated[str | None, typer.Option(help="The conversation that this run belongs to.")] = None,
    workspace: Annotated[str | None, typer.Option(metavar="DIR", help="The folder to work in.")] = None,
    permissions: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help='Rules such as {"bash": "ask"}, laid over the agent\'s.')
    ] = None,
    mode: Annotated[str | None, typer.Option(help="default, read-only, accept-edits or bypass.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Turns after which the run ends.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="JSON", help=BUDGET)] = None,
    require_done: Annotated[bool, typer.Option("--require-done", help="Only the `done` tool ends the run.")] = False,
    skills: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A skill that is active from the start; for more say it again."),
    ] = None,
    output_schema: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="JSON Schema that the answer has to fit.")
    ] = None,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="Kept with the run.")] = None,
    run_id: Annotated[str | None, typer.Option("--id", metavar="RUN", help="The new run's id.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start it, print its id and leave.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every ask of this run.")] = False,
    as_json: Json = False,
) -> None:
    """Start a run and watch it to its end.

    Ctrl-C detaches, and the run goes on.
    Exit codes: 0 completed or detached, 1 failed, 2 wrong request, 3 aborted, 4 limit or budget, 5 no server.
    """
    from loom.workflows.validation import read_request  # noqa: PLC0415

    request = given(
        agent=agent,
        model=model,
        session_id=session,
        workspace=absolute(workspace) if workspace is not None else None,
        permissions=read_permissions(permissions) if permissions is not None else None,
        mode=mode,
        max_turns=max_turns,
        budget=read_object(budget, "--budget") if budget is not None else None,
        require_done_tool=require_done or None,
        skills=skills or None,
        output_schema=read_schema(output_schema) if output_schema is not None else None,
        metadata=read_object(metadata, "--metadata") if metadata is not None else None,
    )
    words = sys.stdin.read() if task == "-" else task
    if yes and detach:
        request = unattended(request)
    read_request({"task": words, **request})
    launch(lambda loom: loom.start(words, run_id=run_id, **request), detach=detach, yes=yes, as_json=as_json)


def watch(run_id: Run, after: From = 0, as_json: JsonStream = False) -> None:
    """Watch a run to its end, and answer what it asks.

    Ctrl-C detaches, and the run goes on. Exit codes are those of `loom run`.
    """
    from loom.cli.watch.watch import watch_run  # noqa: PLC0415

    _leave(_detachable(lambda _: _with(lambda loom: watch_run(loom, run_id, after=after, as_json=as_json)), run_id))


def result(run_id: Run, as_json: Json = False) -> None:
    """Wait for a run's end and print its result.

    Exit codes are those of `loom run`.
    """
    ended = _detachable(lambda _: _with(lambda loom: loom.result(run_id)), run_id)
    if as_json:
        print_json(ended)
    else:
        from loom.cli.output import console  # noqa: PLC0415
        from loom.cli.watch.panels import result as panel  # noqa: PLC0415

        out = console()
        out.print(panel(ended, run_id, boxed=out.is_terminal), soft_wrap=not out.is_terminal)
    _leave(ended)


def events(
    run_id: Run,
    after: From = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run has ended.")] = False,
    as_json: JsonStream = False,
) -> None:
    """Print a run's events as JSON lines."""
    from loom.cli.watch.watch import follow_events, print_events  # noqa: PLC0415

    write = follow_events if follow else print_events
    _detachable(lambda _: _with(lambda loom: write(loom, run_id, after=after)), run_id)


def status(run_id: Run, as_json: Json = False) -> None:
    """Where a run stands and what it waits for."""
    seen = _with(lambda loom: loom.status(run_id))
    if as_json:
        print_json(seen)
        return
    from loom.cli.commands.views import print_status  # noqa: PLC0415

    print_status(seen)


def list_runs(
    status: Annotated[str | None, typer.Option(help="Only those with this status.")] = None,
    session: Annotated[str | None, typer.Option(help="Only those of this session.")] = None,
    tree: Annotated[str | None, typer.Option(help="This run with all its sub-agents.", metavar="RUN")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """The newest runs first, sub-agents left out."""
    from loom.cli.commands.views import print_runs  # noqa: PLC0415

    if status is not None and status not in tuple(RunStatus):
        raise BadRequest(f"--status: {status!r} is not one of {', '.join(RunStatus)}", field="status")
    found = _with(lambda loom: loom.list(status=status, session=session, below=tree, limit=limit))
    if as_json:
        print_json([_jsonable(entry) for entry in found])
    elif not found and (status or session or tree):
        typer.echo("no run fits; `loom list` shows the newest of all")
    else:
        print_runs(found)


def given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value: what is left out stays with the agent's and the worker's own."""
    return {name: value for name, value in fields.items() if value is not None}


def unattended(request: dict[str, Any]) -> dict[str, Any]:
    """The request of a run whose asks are approved though nobody stays: no rule of the request asks."""
    if "mode" in request:
        raise BadRequest("--yes with --detach sets the mode, leave out --mode, or stay without --detach", field="mode")
    tell(
        "--yes without staying: the run may do all that no rule denies (mode bypass). What hooks, guards or the agent's"
        " rules with a pattern ask still waits for a person"
    )
    rules = {rule: "allow" if verdict == "ask" else verdict for rule, verdict in request.get("permissions", {}).items()}
    return {**request, "mode": "bypass", **({"permissions": rules} if rules else {})}


def launch(begin: "Callable[[LoomClient], Awaitable[str]]", *, detach: bool, yes: bool, as_json: bool) -> None:
    """Start a run, by its id, and watch it to its end or leave it; ends with the exit code of how it ended."""
    from loom.cli.watch.watch import tell_if_nobody_works, watch_run  # noqa: PLC0415

    def work(started: Callable[[str], None]) -> RunResult | None:
        async def start_and_watch(loom: "LoomClient") -> RunResult | None:
            name = await begin(loom)
            await tell_if_nobody_works(loom)
            started(name)
            if detach:
                return None
            by = f"{user_name()} (--yes)" if yes else None
            return await watch_run(loom, name, just_started=True, by=by, as_json=as_json, events=False)

        return _with(start_and_watch)

    ended = _detachable(work, None, announce=lambda name: _announce(name, detach=detach, yes=yes, as_json=as_json))
    if ended is None:
        return
    if as_json:
        print_json(ended)
    _leave(ended)


def _announce(run_id: str, *, detach: bool, yes: bool, as_json: bool) -> None:
    if detach and as_json:
        print_json({"run_id": run_id})
    elif detach:
        typer.echo(run_id)
        tell(f"started; `loom watch {run_id}` shows it")
    elif as_json:
        tell(f"run {run_id} started")
    if yes and not detach:
        tell("--yes: every ask of this run is approved")


def _with(work: "Callable[[LoomClient], Awaitable[T]]") -> T:
    from loom.cli.connection import with_client  # noqa: PLC0415

    return with_client(work)


def _detachable(
    work: Callable[[Callable[[str], None]], T], run_id: str | None, announce: Callable[[str], None] = lambda _: None
) -> T:
    """Do work that Ctrl-C leaves without harm to the run; before a run is started there is nothing to leave."""
    names = [run_id] if run_id else []

    def started(name: str) -> None:
        names.append(name)
        announce(name)

    try:
        return work(started)
    except KeyboardInterrupt:
        if not names:
            raise
        name = names[-1]
        tell(f"detached; the run goes on. `loom watch {name}` to come back, `loom abort {name}` to stop it")
        raise typer.Exit(COMPLETED) from None


def _leave(ended: RunResult) -> NoReturn:
    raise typer.Exit(CODES[ended.status])


def _jsonable(entry: Any) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    return asdict(entry)
