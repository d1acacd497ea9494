"""The `loom` command: the table of all commands, and how errors become exit codes.

A command's module is imported when the command is used. `loom --help` and shell completion of command names read the
table alone, so that they stay fast.
"""

import os
import sys
from importlib import import_module
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from loom.domain.core.errors import LoomError
from loom.exit_codes import FAILED, code_of, leave

COMMANDS: Final = {
    "up": ("stack", "Start Temporal, Postgres, Redis and a worker on this machine."),
    "down": ("stack", "Stop what `loom up` started; all data stays."),
    "doctor": ("stack", "Check everything that a run needs."),
    "worker": ("stack", "Run a worker in the foreground, until SIGTERM or Ctrl-C."),
    "run": ("run", "Start a run and watch it until it ends."),
    "watch": ("run", "Watch a run until it ends, and answer what it asks."),
    "result": ("run", "Wait until a run ends and print its result."),
    "events": ("run", "Print a run's events as JSON lines."),
    "status": ("status", "Show a run's status and what it waits for."),
    "list": ("status", "List runs, newest first; sub-agents are left out."),
    "approve": ("steering", "Approve a pending tool call."),
    "deny": ("steering", "Deny a pending tool call; the run goes on without it."),
    "pause": ("steering", "Pause a run: nothing new starts until `loom resume`."),
    "resume": ("steering", "Resume a paused run."),
    "abort": ("steering", "Abort a run and cancel its current work."),
    "send": ("steering", "Answer the agent's question, or send it a message."),
    "show": ("show", "Show a run turn by turn."),
    "fork": ("forks", "Start a new run from a past turn of another run."),
    "diff-runs": ("forks", "Compare two runs turn by turn."),
    "permissions": ("permissions", "Check what permission rules allow."),
    "tools": ("tools", "List a worker's tools, or call one without a model."),
    "agents": ("agents", "List and show a worker's agents."),
    "crew": ("crews", "Run and inspect crews: several agents on one task."),
    "knowledge": ("knowledge", "Manage knowledge bases: documents that runs can search."),
    "memory": ("memory", "Search, export and delete what is remembered of runs."),
    "skills": ("skills", "List, check and add skills."),
    "diff": ("snapshots", "Show what a run changed in its workspace."),
    "restore": ("snapshots", "Restore the files of a run's workspace."),
    "validate": ("validate", "Check files that define agents, crews or permissions."),
}
"""Each command's module in `loom.cli.commands`, and its line in `loom --help`."""


class LazyCommand(TyperCommand):
    """A command of the table: its module is imported once there is something to parse."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._module = f"loom.cli.commands.{module}"

    def load(self) -> Any:
        """The real command: the `app` of its module is a group of this name, or holds the command."""
        group = get_group(import_module(self._module).app)
        return group if group.name == self.name else group.commands[str(self.name)]

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse with the real command; the context that comes back invokes it."""
        return self.load().make_context(*args, **extra)


class Commands(TyperGroup):
    """The table as a group."""

    def __init__(self, **attrs: Any) -> None:
        commands = {name: LazyCommand(name, module, summary) for name, (module, summary) in COMMANDS.items()}
        super().__init__(**{**attrs, "commands": commands})


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="loom",
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_before_each_command)
    return app


def _before_each_command() -> None:
    """Durable agents on Temporal: every run is a workflow, every model call and tool call an activity."""
    import_module("loom.cli.logs").configure(debug=_is_debugging())  # not for --help: structlog takes 60 ms to import


def main() -> NoReturn:
    """Entry point of the `loom` command."""
    try:
        build_app()()
        code = 0  # not reached: the line above always ends with SystemExit
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except LoomError as error:
        typer.echo(f"loom: {error.message}", err=True)
        code = code_of(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line for people, all of it on demand
        if _is_debugging():
            sys.excepthook(type(error), error, error.__traceback__)
        typer.echo(f"loom: {type(error).__name__}: {error} (LOOM_LOG_LEVEL=DEBUG shows where)", err=True)
        code = code_of(error)
    leave(code)


def _is_debugging() -> bool:
    return os.environ.get("LOOM_LOG_LEVEL", "").upper() == "DEBUG"
