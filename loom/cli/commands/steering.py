"""approve, deny, pause, resume, abort, send: orders to a running agent, signed with the user's name."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from loom.cli.arguments import read_object, user_name
from loom.cli.output import plain, print_json, tell
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.client import LoomClient

T = TypeVar("T")
Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Call = Annotated[str | None, typer.Argument(metavar="[CALL]", help="The waiting call; not needed when only one waits.")]
Json = Annotated[bool, typer.Option("--json", help="Print the receipt as JSON and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (approve, deny, pause, resume, abort, send):
        app.command()(command)


def approve(
    run_id: Run,
    call_id: Call = None,
    *,
    for_run: Annotated[bool, typer.Option("--for-run", help="And its like for the rest of the run.")] = False,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Run it with these arguments instead of its own.")
    ] = None,
    digest: Annotated[
        str | None, typer.Option(metavar="D", help="Only if the call is still the one with this digest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a waiting call run."""
    instead = read_object(arguments, "--arguments") if arguments is not None else None
    scope: Literal["once", "run"] = "run" if for_run else "once"
    receipt = _with(
        lambda loom: loom.approve(run_id, call_id, scope=scope, arguments=instead, digest=digest, by=user_name())
    )
    _acknowledge(receipt, _approved(receipt) if for_run else "approved", as_json=as_json)


def deny(
    run_id: Run,
    call_id: Call = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The model reads it.")] = "",
    as_json: Json = False,
) -> None:
    """Refuse a waiting call; the run goes on without it."""
    receipt = _with(lambda loom: loom.deny(run_id, call_id, reason=reason, by=user_name()))
    _acknowledge(receipt, "denied", as_json=as_json)


def pause(run_id: Run, as_json: Json = False) -> None:
    """Let nothing new start until `loom resume`."""
    _acknowledge(_with(lambda loom: loom.pause(run_id, by=user_name())), "paused", as_json=as_json)


def resume(run_id: Run, as_json: Json = False) -> None:
    """Let a paused run go on."""
    _acknowledge(_with(lambda loom: loom.resume(run_id, by=user_name())), "resumed", as_json=as_json)


def abort(
    run_id: Run,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept in the run's result.")] = "",
    as_json: Json = False,
) -> None:
    """Stop a run; what it was doing is cancelled."""
    receipt = _with(lambda loom: loom.abort(run_id, reason=reason, by=user_name()))
    _acknowledge(receipt, "aborted", as_json=as_json)


def send(
    run_id: Run,
    text: Annotated[str, typer.Argument(help="What to say.")],
    as_json: Json = False,
) -> None:
    """Answer the agent's question, or tell it something that it reads when its next turn begins."""
    if not text.strip():
        raise BadRequest("there is nothing to send: write what the agent should read", field="text")
    _acknowledge(
        _with(lambda loom: loom.send(run_id, text, by=user_name())), "sent", as_json=as_json, always_queued=True
    )


def _approved(receipt: JsonObject) -> str:
    """What an approval for the rest of the run has come to."""
    if why := receipt.get("why"):
        return f"approved, only this call: {plain(str(why))}"
    return "approved for the rest of the run" + ("" if "scope" in receipt else ", as far as a rule can say that")


def _acknowledge(receipt: JsonObject, done: str, *, as_json: bool, always_queued: bool = False) -> None:
    if as_json:
        print_json(receipt)
        return
    typer.echo(done)
    if receipt.get("queued") and not always_queued:
        tell("no worker answers now; the run will read it when there is one (`loom worker` or `loom up`)")


def _with(work: "Callable[[LoomClient], Awaitable[T]]") -> T:
    from loom.cli.connection import with_client  # noqa: PLC0415

    return with_client(work)
