"""The `run`, `watch`, `result` and `events` commands, which start a run and follow it to its end."""

import shlex
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Final, NoReturn, TypeAlias, TypeVar

import typer
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from loom.activities.adapters.redis.stream import task_view
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.activities.ports import StreamUnavailable
from loom.cli.arguments import (
    Agent,
    Archive,
    Attach,
    Budget,
    Git,
    Json,
    Metadata,
    Model,
    ModelOptions,
    OptionalRunId,
    OutputSchema,
    Patience,
    PermissionMode,
    Permissions,
    Priority,
    Push,
    Revision,
    RunId,
    Skills,
    Tenant,
    User,
    Workspace,
    named_workspace,
    new_app,
    read_attachments,
    read_fields,
    user_name,
)
from loom.cli.connection import with_client
from loom.cli.output import console, print_json, print_notice
from loom.cli.report_screen import print_estimate
from loom.cli.run_names import remember_started, with_run
from loom.cli.watch import panels
from loom.cli.watch.watch_run import watch_run
from loom.client import LoomClient
from loom.composition.live_workers import live_pollers
from loom.composition.load_settings import load_settings
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunRequest, RunResult, RunStatus
from loom.domain.history.estimates import RunEstimate
from loom.exit_codes import ABORTED, COMPLETED, FAILED, LIMIT
from loom.watching import Streamed, closing
from loom.workflows.validation import read_request

CODES: Final = {
    RunStatus.COMPLETED: COMPLETED,
    RunStatus.FAILED: FAILED,
    RunStatus.ABORTED: ABORTED,
    RunStatus.LIMIT_REACHED: LIMIT,
    RunStatus.BUDGET_EXHAUSTED: LIMIT,
}
"""The exit codes of `run`, `watch` and `result`, by the run's final status."""

T = TypeVar("T")
JsonEvents: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the events as JSON lines and nothing else.")]
From: TypeAlias = Annotated[
    int, typer.Option("--from", min=0, metavar="OFFSET", help="Start after the event with this offset.")
]

app = new_app()


@app.command()
def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task; `-` reads it from standard input.")],
    *,
    agent: Agent = None,
    model: Model = None,
    session: Annotated[str | None, typer.Option(help="Conversation that this run belongs to.")] = None,
    workspace: Workspace = None,
    git: Git = None,
    revision: Revision = None,
    push: Push = None,
    archive: Archive = None,
    permissions: Permissions = None,
    model_options: ModelOptions = None,
    mode: PermissionMode = None,
    max_turns: Annotated[int | None, typer.Option(help="Maximum number of turns of the run.")] = None,
    patience: Patience = None,
    budget: Budget = None,
    require_done: Annotated[
        bool, typer.Option("--require-done", help="End the run only when the agent calls the `done` tool.")
    ] = False,
    skills: Skills = None,
    output_schema: OutputSchema = None,
    metadata: Metadata = None,
    attach: Attach = None,
    priority: Priority = None,
    tenant: Tenant = None,
    user: User = None,
    run_id: Annotated[str | None, typer.Option("--id", metavar="RUN", help="Id for the new run.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run, print its id and return.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Approve every tool call of this run.")] = False,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Don't start a run; show the cost and duration of past runs of the agent."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a run and watch it until it ends.

    Ctrl-C detaches; the run continues.
    Exit codes: 0 completed or detached, 1 failed, 2 invalid request, 3 aborted, 4 limit or budget, 5 no server.
    """
    request = read_fields(
        agent=agent,
        model=model,
        session_id=session,
        workspace=named_workspace(workspace, git, revision, push, archive, on_stdin="TASK" if task == "-" else ""),
        permissions=permissions,
        model_options=model_options,
        mode=mode,
        max_turns=max_turns,
        patience=patience,
        budget=budget,
        require_done_tool=require_done or None,
        skills=skills or None,
        output_schema=output_schema,
        metadata=metadata,
        parts=read_attachments(attach) if attach else None,
        priority=priority,
        tenant=tenant,
        user_id=user,
    )
    if estimate and (detach or yes or run_id):
        raise BadRequest(
            "--estimate doesn't start a run: drop --detach, --yes and --id, or --estimate", field="estimate"
        )
    words = sys.stdin.read() if task == "-" else task
    if yes and detach:
        request = unattended(request)
    asked = read_request({"task": words, **request})
    if estimate:
        _estimate(asked, as_json=as_json)
        return
    launch(
        lambda loom: loom.start(words, run_id=run_id, by=user_name(), **request),
        detach=detach,
        yes=yes,
        as_json=as_json,
    )


@app.command()
def watch(run_id: OptionalRunId = None, after: From = 0, as_json: JsonEvents = False) -> None:
    """Watch a run until it ends, and answer its requests. Without RUN, watch all runs.

    Ctrl-C detaches; the run continues. Exit codes are the same as for `loom run`.
    """
    if run_id is None:
        if after or as_json:
            raise BadRequest("--from and --json are for a single run: name one", field="run_id")
        _watch_all()
        return

    ended = _attached(run_id, lambda loom, run: watch_run(loom, run, after=after, as_json=as_json))
    _exit_with_status(ended)


def _watch_all() -> None:
    from loom.cli.watch.watch_all import watch_all  # noqa: PLC0415 - only without a run

    try:
        with_client(watch_all)
    except KeyboardInterrupt:
        print_notice("the runs continue")


@app.command()
def result(run_id: RunId, as_json: Json = False) -> None:
    """Wait until a run ends and print its result.

    Exit codes are the same as for `loom run`.
    """

    async def awaited(loom: LoomClient, run: str) -> tuple[str, RunResult]:
        return run, await loom.result(run)

    run, ended = _attached(run_id, awaited)
    if as_json:
        print_json(ended)
    else:
        out = console()
        out.print(panels.result(ended, run, boxed=out.is_terminal), soft_wrap=not out.is_terminal)
    _exit_with_status(ended)


@app.command()
def events(
    run_id: RunId,
    after: From = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Continue to print events until the run ends.")] = False,
    as_json: JsonEvents = False,
) -> None:
    """Print a run's events as JSON lines."""
    del as_json  # every command accepts --json; events are always JSON
    write = follow_events if follow else print_events
    _attached(run_id, lambda loom, run: write(loom, run, after=after))


def _estimate(request: RunRequest, *, as_json: bool) -> None:
    """Show the estimate for a run with this request. Raises BadRequest if no worker would serve the request."""

    async def estimated(loom: LoomClient) -> RunEstimate:
        await loom.refuse_unserved(request)
        return await loom.estimate(request.agent, model=request.model)

    found = with_client(estimated)
    if as_json:
        print_json(found)
    else:
        print_estimate(found, console(wide=True))


def unattended(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request in `bypass` mode, with each `ask` rule changed to `allow`, so that calls need no approval."""
    if "mode" in request:
        raise BadRequest("--yes with --detach sets the mode: drop --mode or --detach", field="mode")
    print_notice(
        "--yes with --detach: the run may do everything that no rule denies (bypass mode). A call still waits for a"
        " person if a hook, a guard or one of the agent's own rules with a pattern asks"
    )
    rules = {rule: "allow" if verdict == "ask" else verdict for rule, verdict in request.get("permissions", {}).items()}
    return {**request, "mode": "bypass", **({"permissions": rules} if rules else {})}


def launch(start: Callable[[LoomClient], Awaitable[str]], *, detach: bool, yes: bool, as_json: bool) -> None:
    """Start a run by calling `start`, which returns the run's id. Then detach, or watch the run until it ends."""

    def work(started: Callable[[str], None]) -> RunResult | None:
        async def start_and_watch(loom: LoomClient) -> RunResult | None:
            run_id = await start(loom)
            remember_started(loom, run_id)
            await warn_without_worker(loom)
            started(run_id)
            if detach:
                return None
            by = f"{user_name()} (--yes)" if yes else None
            return await watch_run(loom, run_id, just_started=True, by=by, as_json=as_json, events=False)

        return with_client(start_and_watch)

    ended = _detachable(work, announce=lambda run_id: _announce(run_id, detach=detach, yes=yes, as_json=as_json))
    if ended is None:
        return
    if as_json:
        print_json(ended)
    _exit_with_status(ended)


async def warn_without_worker(loom: LoomClient, queue: str | None = None) -> None:
    """Print a notice if no worker is polling the task queue, which is that of the settings by default."""
    queue = queue or load_settings().task_queue
    with suppress(RPCError):
        if not await live_pollers(loom.temporal, queue):
            print_notice(f"no worker is polling {queue!r}; the run waits. Start one with `loom worker` or `loom up`")


async def print_events(loom: LoomClient, run_id: str, *, after: int) -> None:
    """Print the past events after offset `after` as JSON lines. Raises StreamUnavailable if they can't be read."""
    is_empty = True
    async with closing(loom.events(run_id, after=after)) as events:
        async for event in events:
            is_empty = False
            print_json(task_view(event.offset, event.task))
    if is_empty:
        await loom.status(run_id)  # raises an error if the run doesn't exist


async def follow_events(loom: LoomClient, run_id: str, *, after: int) -> None:
    """Print events until the run ends. Raises StreamUnavailable if the first or the last events can't be read."""
    is_empty = True
    outage = ""
    async with closing(loom.watch(run_id, after=after)) as events:
        async for watched in events:
            if isinstance(watched, Streamed):
                is_empty, outage = False, ""
                print_json(task_view(watched.offset, watched.task))
            elif is_empty:
                raise StreamUnavailable(watched.why)
            elif not outage:
                outage = watched.why
                print_notice(f"the live stream is unavailable ({outage}); waiting for it to come back")
    if outage:
        raise StreamUnavailable(outage)


def _announce(run_id: str, *, detach: bool, yes: bool, as_json: bool) -> None:
    if detach and as_json:
        print_json({"run_id": run_id})
    elif detach:
        typer.echo(run_id)
        print_notice(f"started; watch it with `loom watch {shlex.quote(run_id)}`")
    elif as_json:
        print_notice(f"run {run_id} started")
    if yes and not detach:
        print_notice("--yes: every tool call of this run is approved")


def _attached(name: str, work: Callable[[LoomClient, str], Awaitable[T]]) -> T:
    """Call `work` with the run that a person names. Ctrl-C stops `work` without affecting the run."""

    def begin(attached: Callable[[str], None]) -> T:
        async def named(loom: LoomClient, run_id: str) -> T:
            attached(run_id)
            run = await TemporalRuns(loom.temporal).described(run_id)
            if run.status is WorkflowExecutionStatus.RUNNING:
                await warn_without_worker(loom, run.task_queue)
            return await work(loom, run_id)

        return with_run(name, named)

    return _detachable(begin)


def _detachable(work: Callable[[Callable[[str], None]], T], announce: Callable[[str], None] = lambda _: None) -> T:
    """Call `work`, which reports the id of its run. Ctrl-C stops `work` without affecting the run."""
    run_ids: list[str] = []

    def attached(run_id: str) -> None:
        run_ids.append(run_id)
        announce(run_id)

    try:
        return work(attached)
    except KeyboardInterrupt:
        if not run_ids:
            raise
        last = shlex.quote(run_ids[-1])
        print_notice(
            f"detached; the run continues\nattach again with `loom watch {last}`\nstop it with `loom abort {last}`"
        )
        raise typer.Exit(COMPLETED) from None


def _exit_with_status(ended: RunResult) -> NoReturn:
    raise typer.Exit(CODES[ended.status])
