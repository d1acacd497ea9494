"""The `loom` command: the table of all commands, and the conversion of errors to exit codes.

A command's module is imported when the command is used. `loom --help` and shell completion of command names stay fast
because they read only the table.
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
    "down": ("stack", "Stop everything that `loom up` started; all data is kept."),
    "doctor": ("stack", "Check everything that a run needs."),
    "providers": ("providers", "Show which models can be called, and how much of their rate limits is used."),
    "worker": ("stack", "Run a worker in the foreground, until SIGTERM or Ctrl-C."),
    "run": ("run", "Start a run and watch it until it ends."),
    "chat": ("chat", "Chat with an agent, and come back to the conversation at any time."),
    "watch": ("run", "Watch a run until it ends, and answer its requests."),
    "result": ("run", "Wait until a run ends and print its result."),
    "events": ("run", "Print a run's events as JSON lines."),
    "status": ("status", "Show a run's status and what it is waiting for."),
    "list": ("status", "List runs, newest first. Sub-agents are omitted unless you use --tree."),
    "approve": ("steering", "Approve a pending tool call."),
    "deny": ("steering", "Deny a pending tool call; the run continues without it."),
    "pause": ("steering", "Pause a run: no new work starts until `loom resume`."),
    "resume": ("steering", "Resume a paused run."),
    "retry": ("retry", "Continue a run that is waiting or has ended."),
    "abort": ("steering", "Abort a run and cancel its current work."),
    "send": ("steering", "Answer the agent's question, or send it a message."),
    "show": ("show", "Show a run turn by turn."),
    "fork": ("forks", "Start a new run from a past turn of another run."),
    "diff-runs": ("forks", "Compare two runs turn by turn."),
    "permissions": ("permissions", "Check permission rules against tool calls."),
    "tools": ("tools", "List a worker's tools, or call one without a model."),
    "agents": ("agents", "List and show a worker's agents."),
    "crew": ("crews", "Run and inspect crews: several agents on one task."),
    "knowledge": ("knowledge", "Manage knowledge bases: documents that runs can search."),
    "mcp": ("mcp", "Sign in at MCP servers."),
    "memory": ("memory", "Search, export and delete memories of past runs."),
    "skills": ("skills", "List, check and add skills."),
    "diff": ("snapshots", "Show a run's changes to its workspace."),
    "restore": ("snapshots", "Restore the files in a run's workspace."),
    "replay": ("replay", "Check that this code can continue runs, by replaying their histories."),
    "deployments": ("deployments", "Show which runs are on which version of the workers, and move them."),
    "validate": ("validate", "Check files that define agents, crews or permissions."),
}
"""Maps each command to its module in `loom.cli.commands` and its line in `loom --help`."""


class LazyCommand(TyperCommand):
    """A command in the table. Its module is imported only when the command's arguments are parsed."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._module = f"loom.cli.commands.{module}"

    def load(self) -> Any:
        """Return the real command: the module's `app` if it is a group with this name, or else a command in `app`."""
        group = get_group(import_module(self._module).app)
        return group if group.name == self.name else group.commands[str(self.name)]

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the arguments with the real command. The returned context invokes that command."""
        return self.load().make_context(*args, **extra)


class Commands(TyperGroup):
    """The command group built from the table."""

    def __init__(self, **attrs: Any) -> None:
        commands = {name: LazyCommand(name, module, summary) for name, (module, summary) in COMMANDS.items()}
        super().__init__(**{**attrs, "commands": commands})


def build_app() -> typer.Typer:
    """Build the complete command-line application."""
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
    """Durable AI agents on Temporal: every run is a workflow, and every model call and tool call is an activity."""
    import_module("loom.cli.logs").configure(debug=_is_debugging())  # not for --help: importing structlog takes 60 ms


def main() -> NoReturn:
    """Run the `loom` command and exit."""
    try:
        build_app()()
        code = 0  # never reached: build_app()() always raises SystemExit
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except LoomError as error:
        typer.echo(f"loom: {error.message}", err=True)
        code = code_of(error)
    except Exception as error:  # noqa: BLE001 - last resort: print one line, or the traceback at log level DEBUG
        if _is_debugging():
            sys.excepthook(type(error), error, error.__traceback__)
        typer.echo(f"loom: {type(error).__name__}: {error} (LOOM_LOG_LEVEL=DEBUG shows where)", err=True)
        code = code_of(error)
    leave(code)


def _is_debugging() -> bool:
    return os.environ.get("LOOM_LOG_LEVEL", "").upper() == "DEBUG"
