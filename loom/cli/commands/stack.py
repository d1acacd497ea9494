"""The `up`, `down`, `doctor` and `worker` commands, which manage the embedded stack and run a worker."""

import asyncio
import json
import os
import pkgutil
import re
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from loom.app.loading import with_absolute_file
from loom.cli.arguments import Json, new_app
from loom.composition.load_settings import load_settings, read_settings
from loom.composition.settings import Settings
from loom.doctor import examine, with_addresses_of
from loom.domain.core.errors import BadRequest
from loom.exit_codes import UNREACHABLE
from loom.stack import state as stack_state
from loom.stack import up_down
from loom.stack.plan import Plan
from loom.stack.state import StackState

WORKER: Final = "loom._worker:main"
"""The name of the worker's entry point. It is a string because the CLI and the worker don't import each other."""

App: TypeAlias = Annotated[
    str | None,
    typer.Option("--app", help="Your app with its tools and agents: package.module:app, or path/to/file.py:app."),
]

Roots: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--workspace-root",
        metavar="DIR",
        help="Serve workspaces in this folder, in addition to LOOM_WORKSPACES. Repeatable.",
    ),
]

AS_ROOT: Final = (
    "Note: Loom runs as root. File tools and commands can read and change every file in a workspace, whoever owns it.\n"
    "Your own tools, hooks and MCP servers can do anything on this machine. Start Loom as an ordinary user if you can."
)

app = new_app()


@app.command()
def up(  # noqa: PLR0917 - one parameter for each option
    detach: Annotated[bool, typer.Option("--detach", help="Return once everything is ready.")] = False,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Start only the services.")] = False,
    app: App = None,
    workspace_root: Roots = None,
    private: Annotated[bool, typer.Option("--private", help="Let only your own processes reach Temporal.")] = False,
    as_json: Json = False,
) -> None:
    """Start Temporal, Postgres, Redis and a worker on this machine."""
    _set_app(app)
    _add_roots(workspace_root)
    settings = read_settings()
    if os.geteuid() == 0:
        typer.echo(AS_ROOT, err=True)
    plan = _plan(settings, no_worker=no_worker, names_roots=bool(workspace_root), private=private)
    if detach:
        _print_state(up_down.up_detached(plan), settings, as_json=as_json)
        return
    started = up_down.up_here(plan, lambda state: _print_state(state, settings, as_json=as_json))
    if not started and not as_json:
        typer.echo("It was already running; `loom down` stops it.")


@app.command()
def down(as_json: Json = False) -> None:
    """Stop everything that `loom up` started; all data is kept."""
    home = read_settings().home
    ended = up_down.down(home)
    if as_json:
        typer.echo(json.dumps({"ended": ended}))
    elif ended:
        typer.echo(f"Stopped: {', '.join(ended)}. The data stays in {home}.")
    else:
        typer.echo(f"Nothing was running in {home}.")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check everything that a run needs."""
    settings = load_settings()
    report = _examine(settings, stack_state.read(settings.home))
    typer.echo(json.dumps(report) if as_json else _as_text(report))
    if not report["ok"]:
        raise typer.Exit(UNREACHABLE)


@app.command()
def worker(
    app: App = None,
    workspace_root: Roots = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Exit with code 5 instead of waiting if Temporal doesn't respond.")
    ] = False,
    deployment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Serve one version of this worker deployment; overrides LOOM_DEPLOYMENT."),
    ] = None,
    build: Annotated[
        str | None, typer.Option(metavar="ID", help="The id of this version's code; overrides LOOM_BUILD.")
    ] = None,
) -> None:
    """Run a worker in the foreground, until SIGTERM or Ctrl-C."""
    _set_app(app)
    os.environ.update({k: v for k, v in {"LOOM_DEPLOYMENT": deployment, "LOOM_BUILD": build}.items() if v is not None})
    _add_roots(workspace_root)
    pkgutil.resolve_name(WORKER)(fail_fast=fail_fast)


def _set_app(app: str | None) -> None:
    """Make `--app` override LOOM_APP in this process and its child processes."""
    if app is not None:
        os.environ["LOOM_APP"] = with_absolute_file(app)


def _add_roots(folders: list[Path] | None) -> None:
    """Add the folders of `--workspace-root` to LOOM_WORKSPACES in this process and its child processes.

    Raises BadRequest if one of them isn't a folder, or if its path contains the separator of LOOM_WORKSPACES.
    """
    if not folders:
        return
    for folder in folders:
        if not folder.expanduser().is_dir() or os.pathsep in str(folder):
            raise BadRequest(
                f"--workspace-root: {str(folder)!r} is not a folder that LOOM_WORKSPACES can contain: it must exist,"
                f" and its path must not contain {os.pathsep!r}",
                field="--workspace-root",
            )
    roots = (*read_settings().roots, *(folder.expanduser().absolute() for folder in folders))
    os.environ["LOOM_WORKSPACES"] = os.pathsep.join(map(str, dict.fromkeys(roots)))


def _plan(settings: Settings, *, no_worker: bool, names_roots: bool, private: bool) -> Plan:
    plan = Plan(
        home=settings.home,
        task_queue=settings.task_queue,
        namespace=settings.temporal_namespace,
        metrics_port=settings.metrics_port,
        app=settings.app,
        workspaces=tuple(map(str, settings.roots)) if names_roots else (),
        redis_server=settings.redis_server,
        private=private or settings.private == "on",
    )
    return plan.without_worker() if no_worker else plan


def _print_state(state: StackState, settings: Settings, *, as_json: bool) -> None:
    report = _examine(with_addresses_of(settings, state), state)
    typer.echo(json.dumps(report) if as_json else f"Loom is up; its state is in {settings.home}\n{_as_text(report)}")
    for variable in ("TEMPORAL_ADDRESS", "LOOM_DATABASE_URL", "LOOM_REDIS_URL"):
        if os.environ.get(variable):
            typer.echo(f"Note: {variable} is set; other commands use it instead of this stack.", err=True)


def _examine(settings: Settings, state: StackState) -> dict[str, Any]:
    return asyncio.run(examine(settings, state, settings.home))


def _as_text(report: dict[str, Any]) -> str:
    """Format the report with one line per part. Passwords appear only with `--json`."""
    lines = []
    for name, part in report["parts"].items():
        facts = [part.get(key) for key in ("address", "ui", "version", "program", "pids", "model", "note")]
        shown = "  ".join(re.sub(r"(?<=:)[^:@/]+(?=@)", "…", str(fact)) for fact in facts if fact)
        lines.append(f"  {'ok' if part['ok'] else '--'}  {name:<9} {shown or 'none'}")
        if "hint" in part:
            lines.append(f"      {'':<9} {part['hint']}")
    return "\n".join(lines)
