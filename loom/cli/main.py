"""The `loom` command: the table of all commands, and the conversion of errors to exit codes.

A command's module is imported when the command is used. `loom --help` and shell completion of command names stay fast
because they read only the table.
"""

import gc
import os
import sys
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from loom.domain.core.errors import BadRequest, LoomError
from loom.exit_codes import CUT_OFF, FAILED, USAGE, code_of, leave
from loom.extras import explained

COMMANDS: Final = {
    "init": ("init", "Create a project with an agent, its tests, a worker and a Compose file."),
    "up": ("stack", "Start Temporal, Postgres, Redis, a worker and the HTTP service on this machine."),
    "down": ("stack", "Stop everything that `loom up` started; all data is kept."),
    "backup": ("stack", "Copy the running stack to a folder, which `loom up` can start."),
    "doctor": ("stack", "Check everything that a run needs."),
    "logs": ("logs", "Print the log of the stack's worker, or of another part of the stack."),
    "health": ("health", "Check that this machine's worker is serving. Use this as a container's health check."),
    "providers": ("providers", "Show which models can be called, and how much of their rate limits is used."),
    "worker": ("stack", "Run a worker in the foreground, until SIGTERM or Ctrl-C."),
    "serve": ("serve", "Serve the HTTP API and the web page, until SIGTERM or Ctrl-C."),
    "tokens": ("tokens", "Manage the bearer tokens of the HTTP API."),
    "audit": ("audit", "Show and check who did what, when, and to which run."),
    "run": ("run", "Start a run and watch it until it ends."),
    "chat": ("chat", "Chat with an agent, and come back to the conversation at any time."),
    "watch": ("run", "Watch a run until it ends, and answer its requests. Without RUN, watch all runs."),
    "result": ("run", "Wait until a run ends and print its result."),
    "events": ("run", "Print a run's events as JSON lines."),
    "status": ("status", "Show a run's status and what it is waiting for."),
    "list": ("status", "List runs, newest first. Sub-agents are omitted unless you use --tree."),
    "inbox": ("inbox", "List and answer the approvals and questions of all runs."),
    "notify": ("notify", "Test notifications about approvals, questions and ended runs."),
    "approve": ("steering", "Approve a pending tool call."),
    "deny": ("steering", "Deny a pending tool call; the run continues without it."),
    "pause": ("steering", "Pause a run: no new work starts until `loom resume`."),
    "resume": ("steering", "Resume a paused run."),
    "eval": ("evals", "Run a data set of tasks with checks, and report how many pass."),
    "what-if": ("what_if", "Show how recorded runs would go with other rules, another model, or another prompt."),
    "schedule": ("schedules", "Manage schedules, which start runs at the times in a cron expression."),
    "retry": ("retry", "Continue a run that is waiting or has ended."),
    "repair": ("repair", "Continue a run whose workflow task fails."),
    "abort": ("steering", "Abort a run, or all runs, and cancel their current work."),
    "send": ("steering", "Answer the agent's question, or send it a message."),
    "show": ("show", "Show a run turn by turn."),
    "advise": ("advise", "Suggest how to make runs faster, cheaper and more reliable."),
    "report": ("report", "Show where a run's time, tokens and money went."),
    "export": ("export", "Export a run's complete record as JSON lines."),
    "artifact": ("export", "List and read the outputs and files that a run has stored."),
    "files": ("files", "List, read and write files in a run's workspace."),
    "costs": ("costs", "Show what runs cost, by agent, session, tenant, user, model or day."),
    "fork": ("forks", "Start a new run from a past turn of another run."),
    "diff-runs": ("forks", "Compare two runs turn by turn."),
    "permissions": ("permissions", "Check permission rules against tool calls."),
    "tools": ("tools", "List a worker's tools, or call one without a model."),
    "agents": ("agents", "List and show a worker's agents."),
    "crew": ("crews", "Run and inspect crews: several agents on one task."),
    "knowledge": ("knowledge", "Manage knowledge bases: documents that runs can search."),
    "mcp": ("mcp", "Sign in at MCP servers, and serve Loom as one."),
    "keys": ("keys", "Create, list and rotate the keys that encrypt data, and create one that proves approvals."),
    "tenants": ("tenants", "Forget tenants: delete the keys that encrypt their data."),
    "memory": ("memory", "Search, export and delete memories of past runs."),
    "skills": ("skills", "List, check and add skills."),
    "diff": ("snapshots", "Show a run's changes to its workspace."),
    "restore": ("snapshots", "Restore the files in a run's workspace."),
    "replay": ("replay", "Check that this code can continue runs, by replaying their histories."),
    "move": ("move", "Move waiting runs from an embedded stack to the configured server."),
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
        """Return the real command: the module's `app` if it is a group with this name, or else a command in `app`.

        Raises BadRequest if a package is missing that the command needs.
        """
        try:
            group = get_group(import_module(self._module).app)
        except (ModuleNotFoundError, AttributeError) as error:  # `os` has fewer attributes on other systems
            if (missing := explained(error, f"`loom {self.name}`")) is None:
                raise
            raise BadRequest(missing, field=str(self.name)) from error
        return group if group.name == self.name else group.commands[str(self.name)]

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the arguments with the real command. The returned context invokes that command."""
        return self.load().make_context(*args, **extra)


class HelpCommand(TyperCommand):
    """`loom help CMD`: prints what `loom CMD --help` prints."""

    def __init__(self) -> None:
        summary = "Show a command's help: `loom help run`, `loom help crew list`."
        super().__init__("help", help=summary, rich_markup_mode=None)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse `--help` with the named command, which prints its help and exits."""
        if any(name.startswith("-") for name in args):
            return super().make_context(info_name, args, parent=parent, **extra)
        group = parent.command
        return group.make_context(parent.info_name, [*args, "--help"], parent=parent.parent)


class Commands(TyperGroup):
    """The command group built from the table."""

    def __init__(self, **attrs: Any) -> None:
        commands: dict[str, Any] = {name: LazyCommand(name, *entry) for name, entry in COMMANDS.items()}
        commands["help"] = HelpCommand()
        super().__init__(**{**attrs, "commands": commands})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. Raises BadRequest if one of its words is blank or isn't text."""
        if not ctx.resilient_parsing:  # a shell that completes words sends unfinished ones
            _refuse_unusable(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A value that it can't take is refused in Loom's words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if (refused := error.__cause__) is not None and hasattr(refused, "errors"):
                from loom.domain.core.value_problems import problem_of_value  # noqa: PLC0415 - only for a wrong value

                problem = refused.errors(include_url=False)[0]
                said, given = problem_of_value(problem), repr(str(problem["input"])[:LONGEST_SHOWN])
                error.message = said if given in said else f"{said}, not {given}"
            raise


STANDARD_ERROR: Final = 2
"""The highest file descriptor of a standard stream."""

LONGEST_SHOWN: Final = 200
"""Maximum number of characters of a wrong value in an error."""


def _refuse_unusable(words: list[str]) -> None:
    """Raise BadRequest for a blank word, such as the value of an unset shell variable, and for bytes that aren't text.

    Otherwise `--tenant ""` would mean all tenants, and `--workspace ""` the current folder.
    """
    for before, word in pairwise(["", *words]):
        option, given, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        name = option if option.startswith("--") and option != "--" else "an argument"
        if given and not value.strip():
            raise BadRequest(f"{name} is empty: give it a value, or leave it out", field=name)
        if not word.isascii() and any("\ud800" <= char <= "\udfff" for char in word):
            raise BadRequest(f"{name} is not valid UTF-8: {word!r}", field=name)


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


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - only for this option

        typer.echo(f"loom {version('loom-agents')}")
        raise typer.Exit


def _before_each_command(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print which server the command talks to.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print Loom's version.")
    ] = False,
) -> None:
    """Durable AI agents on Temporal: every run is a workflow, and every model call and tool call is an activity."""
    logs = import_module("loom.cli.logs")  # not for --help: importing structlog takes 60 ms
    logs.IS_VERBOSE.set(verbose)
    logs.configure(debug=_is_debugging())


def main() -> NoReturn:
    """Run the `loom` command and exit."""
    gc.set_threshold(10_000)  # imports create many objects, but hardly any garbage
    _open_standard_streams()
    try:
        build_app()()
        code = 0  # never reached: build_app()() always raises SystemExit
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
        if isinstance(end.__context__, BrokenPipeError):
            code = CUT_OFF
    except LoomError as error:
        for line in (error.message, *getattr(error, "__notes__", ())):
            _complain(line)
        code = code_of(error)
    except Exception as error:  # noqa: BLE001 - last resort: print one line, or the traceback at log level DEBUG
        if _is_debugging():
            sys.excepthook(type(error), error, error.__traceback__)
        missing = explained(error, "this command") if isinstance(error, ModuleNotFoundError) else None
        _complain(missing or f"{type(error).__name__}: {error} (LOOM_LOG_LEVEL=DEBUG shows where)")
        code = code_of(error) if missing is None else USAGE
    leave(code)


def _open_standard_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed, as `>&-` does.

    Otherwise `sys.stdout` is None, and the next file or connection that the command opens becomes its standard output.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(opened, True)  # noqa: FBT003 - it takes no names
    os.close(opened)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", STANDARD_ERROR, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - open until the process ends


def _complain(text: str) -> None:
    """Print an error. It may contain text from a server, a model or a file."""
    import_module("loom.cli.output").print_notice(f"loom: {text}")


def _is_debugging() -> bool:
    return os.environ.get("LOOM_LOG_LEVEL", "").upper() == "DEBUG"
