"""up, down, doctor, worker: the stack and what runs in it."""

import asyncio
import json
import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loom.exit_codes import UNREACHABLE

if TYPE_CHECKING:  # each command imports what it works with, so that `loom --help` is fast
    from loom.composition.settings import Settings
    from loom.stack.plan import Plan
    from loom.stack.state import StackState

App = Annotated[
    str | None, typer.Option("--app", help="Your tools and agents: package.module:app, or path/to/file.py:app.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (up, down, doctor, worker):
        app.command()(command)


def up(
    detach: Annotated[bool, typer.Option("--detach", help="Return once all is ready.")] = False,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Services only.")] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Start Temporal, Postgres, Redis and a worker on this machine."""
    from loom.composition.load_settings import read_settings  # noqa: PLC0415
    from loom.stack.up_down import up_detached, up_here  # noqa: PLC0415

    _choose(app)
    settings = read_settings()
    plan = _plan(settings, no_worker=no_worker)
    if detach:
        _show(up_detached(plan), settings, as_json=as_json)
    elif not up_here(plan, lambda state: _show(state, settings, as_json=as_json)) and not as_json:
        typer.echo("It was running already; `loom down` ends it.")


def down(as_json: Json = False) -> None:
    """End what `loom up` started here; all data stays."""
    from loom.composition.load_settings import read_settings  # noqa: PLC0415
    from loom.stack import up_down as stack  # noqa: PLC0415

    home = read_settings().home
    ended = stack.down(home)
    if as_json:
        typer.echo(json.dumps({"ended": ended}))
    elif ended:
        typer.echo(f"Ended: {', '.join(ended)}. The data stays in {home}.")
    else:
        typer.echo(f"Nothing was running in {home}.")


def doctor(as_json: Json = False) -> None:
    """Check that everything is there that a run needs."""
    from loom.composition.load_settings import load_settings  # noqa: PLC0415
    from loom.stack import state  # noqa: PLC0415

    settings = load_settings()
    report = _examine(settings, state.read(settings.home))
    typer.echo(json.dumps(report) if as_json else _as_text(report))
    if not report["ok"]:
        raise typer.Exit(UNREACHABLE)


def worker(app: App = None) -> None:
    """Run a worker here, until SIGTERM or Ctrl-C."""
    from loom import _worker as program  # noqa: PLC0415

    _choose(app)
    program.main()


def _choose(app: str | None) -> None:
    """The option outranks the setting, here and in every process that is started from here."""
    if app is not None:
        from loom.app.loading import with_absolute_file  # noqa: PLC0415

        os.environ["LOOM_APP"] = with_absolute_file(app)


def _plan(settings: "Settings", *, no_worker: bool) -> "Plan":
    from loom.stack.plan import Plan  # noqa: PLC0415

    plan = Plan(
        home=settings.home,
        task_queue=settings.task_queue,
        namespace=settings.temporal_namespace,
        metrics_port=settings.metrics_port,
        app=settings.app,
        redis_server=settings.redis_server,
    )
    return plan.without_worker() if no_worker else plan


def _show(state: "StackState", settings: "Settings", *, as_json: bool) -> None:
    from loom.doctor import with_addresses_of  # noqa: PLC0415

    report = _examine(with_addresses_of(settings, state), state)
    typer.echo(json.dumps(report) if as_json else f"Loom is up, its state is in {settings.home}\n{_as_text(report)}")
    for variable in ("TEMPORAL_ADDRESS", "LOOM_DATABASE_URL", "LOOM_REDIS_URL"):
        if os.environ.get(variable):
            typer.echo(f"Note: {variable} is set, other commands use it and not this stack.", err=True)


def _examine(settings: "Settings", state: "StackState") -> dict[str, Any]:
    from loom.doctor import examine  # noqa: PLC0415

    return asyncio.run(examine(settings, state, settings.home))


def _as_text(report: dict[str, Any]) -> str:
    """One line a part; passwords stay out of what scrolls by, `--json` has them."""
    lines = []
    for name, part in report["parts"].items():
        facts = [part.get(key) for key in ("address", "ui", "version", "program", "pids", "model", "note")]
        shown = "  ".join(re.sub(r"(?<=:)[^:@/]+(?=@)", "…", str(fact)) for fact in facts if fact)
        lines.append(f"  {'ok' if part['ok'] else '--'}  {name:<9} {shown or 'none'}")
        if "hint" in part:
            lines.append(f"      {'':<9} {part['hint']}")
    return "\n".join(lines)
