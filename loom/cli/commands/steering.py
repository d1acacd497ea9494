"""The `approve`, `deny`, `pause`, `resume`, `abort` and `send` commands, which steer a run on behalf of the user."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeAlias

import typer

from loom.cli.abort_all import abort_all
from loom.cli.arguments import Attach, OptionalRunId, RunId, new_app, read_attachments, read_object, user_name
from loom.cli.connection import notice_if_slow
from loom.cli.output import fault_told, plain, print_json, print_notice
from loom.cli.run_names import call_named, with_run
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.pending_approvals import read_approval
from loom.running_runs import RunFilter

CallId: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="CALL", help="Id of the pending call, or its beginning; optional when only one is pending."),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the receipt as JSON and nothing else.")]

app = new_app()


@app.command()
def approve(
    run_id: RunId,
    call_id: CallId = None,
    *,
    for_run: Annotated[
        bool, typer.Option("--for-run", help="Also approve similar calls for the rest of the run.")
    ] = False,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Run the call with these arguments instead.")
    ] = None,
    digest: Annotated[
        str | None, typer.Option(metavar="D", help="Approve only if the pending call still has this digest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Approve a pending tool call."""
    edited = read_object(arguments, "--arguments") if arguments is not None else None
    scope: Literal["once", "run"] = "run" if for_run else "once"

    async def sent(loom: LoomClient, run: str) -> JsonObject:
        call, seen = await _named(loom, run, call_id)
        expected = digest or seen.get("digest")
        receipt = await loom.approve(run, call, scope=scope, arguments=edited, digest=expected, by=user_name())
        return {**_reference(seen), **receipt}

    receipt = _steered(run_id, sent)
    done = f"approved{_about(receipt)}"
    _acknowledge(receipt, f"{done}{_extent(receipt)}" if for_run else done, as_json=as_json)


@app.command()
def deny(
    run_id: RunId,
    call_id: CallId = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason to show to the model.")] = "",
    as_json: Json = False,
) -> None:
    """Deny a pending tool call; the run continues without it."""

    async def sent(loom: LoomClient, run: str) -> JsonObject:
        call, seen = await _named(loom, run, call_id)
        return {**_reference(seen), **await loom.deny(run, call, reason=reason, by=user_name())}

    receipt = _steered(run_id, sent)
    _acknowledge(receipt, f"denied{_about(receipt)}", as_json=as_json)


@app.command()
def pause(run_id: RunId, as_json: Json = False) -> None:
    """Pause a run: no new work starts until `loom resume`."""
    _acknowledge(_steered(run_id, lambda loom, run: loom.pause(run, by=user_name())), "paused", as_json=as_json)


@app.command()
def resume(run_id: RunId, as_json: Json = False) -> None:
    """Resume a paused run."""
    _acknowledge(_steered(run_id, lambda loom, run: loom.resume(run, by=user_name())), "resumed", as_json=as_json)


@app.command()
def abort(
    run_id: OptionalRunId = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Abort all runs, or those that match the other options.")
    ] = False,
    agent: Annotated[str | None, typer.Option(help="With --all: only runs of this agent.")] = None,
    session: Annotated[str | None, typer.Option(help="With --all: only runs of this session.")] = None,
    tenant: Annotated[str | None, typer.Option(help="With --all: only runs of this tenant.")] = None,
    user: Annotated[str | None, typer.Option(metavar="U", help="With --all: only runs for this person.")] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason to store in the result of each run.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="With --all: do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Abort a run, or all runs, and cancel their current work.

    Sub-agents end with their run. With --all, the command waits until the runs have ended, and prints which ones have.
    Exit code 1 with --all: a run hasn't ended, or another one has started in the meantime.
    """
    which = RunFilter(agent=agent, session=session, tenant=tenant, user=user)
    if every is (run_id is not None):
        raise BadRequest("name one run, or use --all", field="run_id")
    if run_id is not None:
        if yes or which != RunFilter():
            raise BadRequest("--agent, --session, --tenant, --user and --yes are for --all", field="run_id")
        receipt = _steered(run_id, lambda loom, run: loom.abort(run, reason=reason, by=user_name()))
        _acknowledge(receipt, "aborted", as_json=as_json)
        return
    abort_all(which, reason=reason, yes=yes, as_json=as_json)


@app.command()
def send(
    run_id: RunId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer or message.")],
    attach: Attach = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Person who says this. The default is your login name.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer the agent's question, or send it a message.

    The agent reads a message at the start of its next turn.
    """
    if not text.strip():
        raise BadRequest("the message is empty: pass a text for the agent", field="text")
    parts = read_attachments(attach) if attach else None
    sender = user_name() if by is None else by
    receipt = _steered(run_id, lambda loom, run: loom.send(run, text, parts=parts, by=sender))
    _acknowledge(receipt, "sent", as_json=as_json, always_queued=True)


def _steered(run_id: str, act: Callable[[LoomClient, str], Awaitable[JsonObject]]) -> JsonObject:
    """Return the receipt of what the person does to the run. Without a worker, it takes several seconds."""

    async def told(loom: LoomClient, run: str) -> JsonObject:
        with notice_if_slow("waiting for a worker to answer"):
            return await act(loom, run)

    return with_run(run_id, told)


async def _named(loom: LoomClient, run_id: str, name: str | None) -> tuple[str | None, JsonObject]:
    """Return the id of the call that a person names, and the pending call, which is empty if no worker knows it."""
    if name is None:
        return None, {}  # the client looks for the only pending call
    status = await loom.status(run_id)
    call_id = call_named(status, name)
    pending = status.get("pending_approvals", ())
    return call_id, next((dict(call) for call in pending if call["call_id"] == call_id), {})


def _reference(call: JsonObject) -> JsonObject:
    return read_approval(call).reference if call else {}


def _about(receipt: JsonObject) -> str:
    """Name the call that was decided, if it is known."""
    return f" {plain(str(receipt['tool']))} ({plain(str(receipt['call_id']))})" if "tool" in receipt else ""


def _extent(receipt: JsonObject) -> str:
    """Describe the scope of an approval for the rest of the run."""
    if why := receipt.get("why"):
        return f", only this call: {plain(str(why))}"
    return " for the rest of the run" + ("" if "scope" in receipt else ", as far as a rule can express it")


def _acknowledge(receipt: JsonObject, done: str, *, as_json: bool, always_queued: bool = False) -> None:
    if as_json:
        print_json(receipt)
        return
    is_queued = receipt.get("queued") and not always_queued
    typer.echo("queued" if is_queued else done)
    if fault := receipt.get("fault"):
        print_notice(fault_told(str(receipt["run_id"]), fault))
    elif is_queued:
        print_notice(
            "no worker is responding; the run will act on this once a worker is back (`loom worker` or `loom up`)"
        )
